package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func TestInfo(t *testing.T) {
	got := tidemarkRun("info", newHeap(t))
	require.Equal(t, exitOK, got.status, got.stderr)
	require.Empty(t, got.stderr)
	for _, line := range []string{
		`heap +.*/h/heap`,
		`uuid +[0-9a-f]{32}`,
		`format +1`,
		`created +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`,
		`size +[0-9.]+ MiB`,
		`state +closed`,
		`same boot +yes`,
		`clock +\d+`,
		`boundary +\d+`,
		`payloads +309 live, 0 discarded, 0 damaged`,
		`superblocks +\d+, [0-9.]+ KiB used, [0-9.]+ KiB free`,
		`fragmentation +\d+\.\d%`,
		`free units +\d+ of \d+, [0-9.]+ [KM]iB`,
		`STRUCTURE +KIND +ID +TYPES`,
		`\(directory\) +- +1 +-`,
		`blobs +hashmap +3 +-`,
		`points +cloud +4 +point`,
		`users +hashmap +2 +-`,
		` *BLOCK +SUPERBLOCKS +BYTES +BLOCKS +USED +FREE +FULL +STRUCTURE`,
		` *run +1 +640 KiB +1 +1 +0 +100\.0% +blobs`,
		` *64 B +1 +64 KiB +1023 +301 +722 +29\.4% +users`,
	} {
		require.Regexp(t, `(?m)^`+line, got.stdout)
	}
}

func TestInfoAfterKill(t *testing.T) {
	dir := killedHeap(t)
	got := tidemarkRun("info", dir)
	require.Equal(t, exitOK, got.status, got.stderr)
	require.Regexp(t, `(?m)^state +crashed$`, got.stdout)

	var rep infoReport
	got = tidemarkRun("info", "-json", dir)
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &rep))
	require.Equal(t, exitOK, got.status)
	require.False(t, rep.Recovery.Clean)
	require.True(t, rep.SameBoot)
	require.EqualValues(t, 309, rep.Recovery.Live)
	require.Equal(t, rep.Clock-2, rep.Recovery.Boundary)
	require.EqualValues(t, 1, rep.Format)
	require.Len(t, rep.UUID, 32)
	require.WithinDuration(t, time.Now(), rep.Created, time.Hour)
	require.Equal(t, rep.Size, rep.Units*unitSize)
	require.NotNil(t, rep.Problems)
	require.Empty(t, rep.Problems)
	require.Positive(t, rep.Fragmentation)
	require.Less(t, rep.Fragmentation, 1.0)

	require.Len(t, rep.Structures, 4)
	var superblocks int64
	for _, s := range rep.Structures {
		for _, cl := range s.Classes {
			superblocks += int64(cl.Superblocks)
		}
	}
	require.Equal(t, rep.Superblocks, superblocks)
	users := rep.Structures[3]
	require.Equal(t, "users", users.Name)
	require.Equal(t, hashmap.Kind, users.Kind)
	var used int64
	for _, cl := range users.Classes {
		used += cl.Blocks - cl.Free
	}
	require.EqualValues(t, 302, used)
	require.Equal(t, []string{"point"}, rep.Structures[2].Types)
}

func TestInfoEmpty(t *testing.T) {
	dir := t.TempDir()
	h, err := tidemark.Open(dir, nil)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	got := tidemarkRun("info", dir)
	require.Equal(t, exitOK, got.status, got.stderr)
	require.Regexp(t, `(?m)^fragmentation +-$`, got.stdout)
	require.NotContains(t, got.stdout, "BLOCK")

	got = tidemarkRun("dump", dir, "users")
	require.Equal(t, exitFailed, got.status)
	require.Contains(t, got.stderr, "there are: none")
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 64 << 10: "64 KiB", 5 << 20: "5 MiB", 1 << 40: "1 TiB",
		1<<64 - 1: "16 EiB",
	} {
		require.Equal(t, want, bytesText(n))
	}
}

func TestShow(t *testing.T) {
	require.Equal(t, "users", show("users"))
	require.Equal(t, "große", show("große"))
	require.Equal(t, `"two words"`, show("two words"))
	require.Equal(t, `"\x1b[2J"`, show("\x1b[2J"))
	require.Equal(t, `"\xff"`, show("\xff"))
}
