package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, persist.Castagnoli) }

func TestVerifyClean(t *testing.T) {
	for _, dir := range []string{newHeap(t), killedHeap(t)} {
		got := tidemarkRun("verify", dir)
		require.Equal(t, exitOK, got.status, got)
		require.Empty(t, got.stderr)
		require.Regexp(t, `\A.*: no damage; read \d+ superblocks \([0-9.]+ [KM]iB\), 309 payloads\n\z`, got.stdout)

		rep := verifyJSON(t, dir)
		require.Equal(t, dir, rep.Dir)
		require.True(t, rep.Clean)
		require.True(t, rep.Complete)
		require.EqualValues(t, 309, rep.Payloads)
		require.NotNil(t, rep.Problems)
		require.Empty(t, rep.Problems)
	}
}

func verifyJSON(t *testing.T, dir string) (rep verifyReport) {
	t.Helper()
	got := tidemarkRun("verify", "-json", dir)
	require.Empty(t, got.stderr)
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &rep))
	require.Equal(t, rep.Clean, got.status == exitOK)
	require.Equal(t, !rep.Clean, got.status == exitDamage)
	return rep
}

func TestVerifyDamage(t *testing.T) {
	const unit = persist.UnitSize
	value := []byte(marker)
	for _, c := range []struct {
		name      string
		structure string
		rule      string
		open      bool // the heap can still be opened
		damage    func(b []byte) (offset int)
	}{
		{"contents", "users", "L2", true, func(b []byte) int {
			at := bytes.Index(b, value)
			b[at+3] ^= 1
			return at - 4 - len("marked") - 16
		}},
		{"control word", "users", "L1", true, func(b []byte) int {
			at := bytes.Index(b, value) - 4 - len("marked") - 16
			b[at+5] ^= 4
			return at
		}},
		{"superblock header", "", "A1", true, func(b []byte) int { b[2*unit+4] ^= 1; return 2 * unit }},
		{"clean word", "", "P5", true, func(b []byte) int { b[persist.CleanOff] ^= 1; return int(persist.CleanOff) }},
		{"boot id", "", "P5", true, func(b []byte) int { b[persist.BootOff] ^= 1; return int(persist.BootOff) }},
		{"clock", "", "P5", false, func(b []byte) int { b[persist.ClockOff] ^= 1; return int(persist.ClockOff) }},
		{"one header copy", "", "header copy", true, func(b []byte) int { b[30] ^= 1; return 0 }},
		{"both header copies", "", "header checksum", false, func(b []byte) int { b[30] ^= 1; b[0x1030] ^= 1; return 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := newHeap(t)
			var off int
			patch(t, dir, func(b []byte) { off = c.damage(b) })

			rep := verifyJSON(t, dir)
			require.False(t, rep.Clean)
			require.Equal(t, c.open, rep.Complete)
			require.NotEmpty(t, rep.Problems)
			p := rep.Problems[0]
			require.EqualValues(t, off, p.Offset)
			require.Equal(t, c.structure, p.Structure)
			require.Contains(t, p.Rule, c.rule)
			require.Len(t, rep.Problems, 1)

			got := tidemarkRun("verify", dir)
			require.Equal(t, exitDamage, got.status)
			require.Empty(t, got.stderr)
			lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
			require.Len(t, lines, 2)
			require.Equal(t, "damage: "+p.String(), lines[0])
			require.Contains(t, lines[0], fmt.Sprintf("offset %#x: ", off))
			require.Contains(t, lines[1], ": 1 problem; ")

			if !c.open {
				require.Equal(t, exitDamage, tidemarkRun("info", dir).status)
				require.Equal(t, exitDamage, tidemarkRun("dump", dir, "users").status)
			}
		})
	}
}

func TestVerifyShortFile(t *testing.T) {
	dir := newHeap(t)
	for _, size := range []int64{2 * persist.UnitSize, 100, 0} {
		require.NoError(t, os.Truncate(dir+"/heap", size))
		before := state(t, dir)
		if got := tidemarkRun("verify", dir); size < persist.UnitSize {
			require.Equal(t, exitDamage, got.status, got)
		}
		require.Equal(t, before, state(t, dir))
	}
}

// What the framework holds sound a map may not.
func TestVerifyMap(t *testing.T) {
	dir := t.TempDir()
	h, err := tidemark.Open(dir, nil)
	require.NoError(t, err)
	st, err := h.OpenStructure("m", hashmap.Kind)
	require.NoError(t, err)
	require.NoError(t, h.Do(func(op tidemark.Op) error {
		for _, contents := range []string{"\x01\x00\x00\x00kv", "\x01\x00\x00\x00kw", "\x09\x00\x00\x00short", "?"} {
			if _, err := st.Space().New(op, 1, []byte(contents)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, h.Close())

	rep := verifyJSON(t, dir)
	require.Len(t, rep.Problems, 3)
	twice := 0
	for _, p := range rep.Problems {
		require.Equal(t, "m", p.Structure)
		require.Contains(t, p.Rule, "H1")
		if strings.Contains(p.Rule, "two live entries") {
			twice++
		}
	}
	require.Equal(t, 1, twice)

	got := tidemarkRun("dump", dir, "m")
	require.Equal(t, exitDamage, got.status)
	require.Regexp(t, `\A\{"key":"k","value":"[vw]"\}\n\z`, got.stdout)
	require.Equal(t, 3, strings.Count(got.stderr, "damage: "))
}

func TestBar(t *testing.T) {
	require.Nil(t, newBar(&bytes.Buffer{}))
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	require.Nil(t, newBar(null))
	var none *bar
	none.show(tidemark.Progress{})
	none.clear()

	var out bytes.Buffer
	b := &bar{w: &out}
	b.clear()
	require.Empty(t, out.String())
	b.show(tidemark.Progress{Phase: "sweep", Done: 50, Total: 100})
	require.Contains(t, out.String(), "["+strings.Repeat("#", 15)+strings.Repeat(".", 15)+"]  50%")
	b.show(tidemark.Progress{Phase: "rebuild", Structure: strings.Repeat("long", 99) + "\x1b", Done: 7, Total: 0})
	require.Contains(t, out.String(), "… [")
	require.NotContains(t, out.String(), "\x1b")
	b.clear()
	require.True(t, strings.HasSuffix(out.String(), " \r"))
}
