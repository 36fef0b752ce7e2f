package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDumpMap(t *testing.T) {
	for _, dir := range []string{newHeap(t), killedHeap(t)} {
		got := tidemarkRun("dump", dir, "users")
		require.Equal(t, exitOK, got.status, got.stderr)
		lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
		require.Len(t, lines, 302)
		require.Contains(t, lines, `{"key":"user007","value":"<name 7>"}`)
		require.Contains(t, lines, `{"key":"","value":""}`)
		require.Contains(t, lines, fmt.Sprintf(`{"key":"marked","value":%q}`, marker))

		got = tidemarkRun("dump", dir, "blobs")
		require.Equal(t, exitOK, got.status, got.stderr)
		lines = strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
		require.ElementsMatch(t, lines, []string{
			`{"key64":"/wA=","value":"text"}`,
			`{"key":"key","value64":"gIE="}`,
			`{"key":"large","value":"` + strings.Repeat("L", 600<<10) + `"}`,
		})
	}
}

func TestDumpPayloads(t *testing.T) {
	got := tidemarkRun("dump", newHeap(t), "points")
	require.Equal(t, exitOK, got.status, got.stderr)
	require.Regexp(t, `\A\{"ref":"0x[0-9a-f]+","tag":1,"size":8,"bytes64":"[^"]+"\}\n\z`, got.stdout)
	var line payloadLine
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &line))
	require.Equal(t, []byte{1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff}, line.Bytes64)
}

func TestDumpUnknown(t *testing.T) {
	got := tidemarkRun("dump", newHeap(t), "nothing")
	require.Equal(t, exitFailed, got.status)
	require.Empty(t, got.stdout)
	require.Contains(t, got.stderr, `there is no structure "nothing"; there are: blobs (hashmap), points (cloud), users (hashmap)`+"\n")
}

func TestDumpDamaged(t *testing.T) {
	dir := killedHeap(t)
	patch(t, dir, func(b []byte) { b[bytes.Index(b, []byte(marker))]++ })
	got := tidemarkRun("dump", dir, "users")
	require.Equal(t, exitDamage, got.status)
	require.Equal(t, 301, strings.Count(got.stdout, "\n"))
	require.Regexp(t, `\Adamage: structure "users": offset 0x[0-9a-f]+: L2: [^\n]+\n\z`, got.stderr)
}
