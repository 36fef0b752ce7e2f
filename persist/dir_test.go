package persist_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark/persist"
)

func TestSealShowsEveryFlippedBit(t *testing.T) {
	for _, v := range []uint64{0, 1, 0x1234, 1<<56 - 1, 0xa5a5a5a5a5a5a5} {
		w := persist.Seal(v)
		got, ok := persist.Unseal(w)
		require.True(t, ok)
		require.Equal(t, v, got)
		for bit := range 64 {
			_, ok := persist.Unseal(w ^ 1<<bit)
			require.False(t, ok, "bit %d of %#x", bit, w)
		}
	}
	require.Zero(t, persist.Seal(0))
}

// The header is looked at in the order magic, version, features, checksum; what
// has no right checksum is damage, whatever version it seems to have.
func TestHeaderIsJudgedInOrder(t *testing.T) {
	sound := persist.NewHeader().Encode()
	for _, c := range []struct {
		name  string
		at    int
		v     uint32
		resum bool
		want  error
	}{
		{"magic", 0, 1, true, persist.ErrForeign},
		{"version", 8, 9, true, persist.ErrFormat},
		{"version without checksum", 8, 9, false, persist.ErrCorrupt},
		{"compatible feature", 12, 9, true, nil},
		{"feature", 16, 9, true, persist.ErrFormat},
		{"feature without checksum", 16, 9, false, persist.ErrCorrupt},
		{"unit", 20, 4096, true, persist.ErrCorrupt},
		{"reserved", 56, 1, true, persist.ErrCorrupt},
		{"checksum", 60, 0, false, persist.ErrCorrupt},
	} {
		b := bytes.Clone(sound)
		binary.LittleEndian.PutUint32(b[c.at:], c.v)
		if c.resum {
			binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], persist.Castagnoli))
		}
		_, err := persist.DecodeHeader("file", 0, b)
		if c.want == nil {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorIs(t, err, c.want, c.name)
		require.ErrorContains(t, err, "file", c.name)
	}
	_, err := persist.DecodeHeader("file", 0, sound[:persist.StaticSize-1])
	require.ErrorIs(t, err, persist.ErrCorrupt)
}

// Abandon takes back what opening made, and no more.
func TestAbandonRemovesWhatOpeningMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	r, err := persist.OpenDir(dir, persist.Config{})
	require.NoError(t, err)
	r.Abandon()
	require.NoDirExists(t, dir)

	require.NoError(t, os.Mkdir(dir, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o666))
	r, err = persist.OpenDir(dir, persist.Config{})
	require.NoError(t, err)
	r.Abandon()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	r, err = persist.OpenDir(dir, persist.Config{})
	require.NoError(t, err)
	require.NoError(t, r.Close())
	r, err = persist.OpenDir(dir, persist.Config{})
	require.NoError(t, err)
	r.Abandon()
	require.FileExists(t, filepath.Join(dir, "heap"))
}

func TestRegionIsUnusableAfterClose(t *testing.T) {
	r, err := persist.OpenDir(filepath.Join(t.TempDir(), "h"), persist.Config{})
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Panics(t, func() { r.Load(persist.ClockOff) })
	require.Panics(t, func() { r.Bytes(0, 1) })
}

func TestRangesOutsideTheRegion(t *testing.T) {
	r, err := persist.NewMemory(2 * persist.UnitSize)
	require.NoError(t, err)
	for _, c := range []struct {
		off persist.Off
		n   int
	}{
		{persist.UnitSize, 1}, {persist.UnitSize - 7, 8}, {0, persist.UnitSize + 1}, {0, -1}, {1 << 63, 8}, {^persist.Off(0), 1}, {8, math.MaxInt},
	} {
		require.Panics(t, func() { r.Bytes(c.off, c.n) }, "%+v", c)
	}
	require.Panics(t, func() { r.Word(4) })
	require.Len(t, r.Bytes(persist.UnitSize, 0), 0)
	require.NoError(t, r.Grow(2*persist.UnitSize))
	require.ErrorIs(t, r.Grow(2*persist.UnitSize+1), persist.ErrNoSpace)
	_, err = persist.NewMemory(^uint64(0))
	require.Error(t, err)
}
