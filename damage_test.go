//go:build linux

package tidemark_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func readHeap(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "heap"))
	require.NoError(t, err)
	return b
}

func writeHeap(t testing.TB, dir string, b []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "heap"), b, 0o666))
}

func TestDamagedHeaderInBothCopies(t *testing.T) {
	dir := filled(t, 3)
	whole := readHeap(t, dir)
	for at := range persist.StaticSize {
		b := bytes.Clone(whole)
		b[at] ^= 1 << (at % 8)
		b[0x1000+at] ^= 1 << (at % 8)
		writeHeap(t, dir, b)
		for name, f := range map[string]func() error{
			"Open":   func() error { _, err := tidemark.Open(dir, nil); return err },
			"Verify": func() error { _, err := tidemark.Verify(ctx, dir, nil); return err },
		} {
			err := f()
			want := tidemark.ErrCorrupt
			if at < 8 {
				want = tidemark.ErrForeign
			}
			require.ErrorIs(t, err, want, "%s, byte %d", name, at)
			require.ErrorContains(t, err, filepath.Join(dir, "heap"))
		}
		require.True(t, bytes.Equal(b, readHeap(t, dir)), "byte %d: the file has changed", at)
	}
	b := bytes.Clone(whole)
	b[3] ^= 4
	b[0x1000+33] ^= 4
	writeHeap(t, dir, b)
	_, err := tidemark.Open(dir, nil)
	require.ErrorIs(t, err, tidemark.ErrCorrupt, "a magic in one copy is enough to know whose file it is")
}

func TestDamagedHeaderInOneCopy(t *testing.T) {
	dir := filled(t, 3)
	whole := readHeap(t, dir)
	for copies := range 2 {
		for at := range persist.StaticSize {
			b := bytes.Clone(whole)
			b[copies*0x1000+at] ^= 1 << (at % 8)
			writeHeap(t, dir, b)

			rep, err := tidemark.Verify(ctx, dir, nil)
			require.NoError(t, err)
			require.Len(t, rep.Problems, 1, "byte %d of copy %d", at, copies)
			require.ErrorContains(t, rep.Problems[0], "header cop")
			h, err := tidemark.OpenReadOnly(dir, nil)
			require.NoError(t, err)
			checkFilled(t, openMap(t, h, "m"), 3)
			require.NoError(t, h.Close())
			require.True(t, bytes.Equal(b, readHeap(t, dir)))

			h, err = tidemark.Open(dir, manual())
			require.NoError(t, err)
			require.NoError(t, h.Close())
			rep, err = tidemark.Verify(ctx, dir, nil)
			require.NoError(t, err)
			require.Empty(t, rep.Problems, "a writer heals it")
			require.True(t, bytes.Equal(whole[:0x2000], readHeap(t, dir)[:0x2000]))
		}
	}
}

// No bit of the first unit changes without Verify saying so.
func TestEveryHeaderByteIsVerified(t *testing.T) {
	dir := filled(t, 3)
	whole := readHeap(t, dir)
	at := []int{0x40, 0xfff, 0x1040, 0x1fff, 0x20c0, 0x3000, persist.UnitSize - 1}
	for i := 0x2000; i < 0x20a0; i++ {
		at = append(at, i)
	}
	for _, i := range at {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		writeHeap(t, dir, b)
		rep, err := tidemark.Verify(ctx, dir, nil)
		if err != nil {
			require.ErrorIs(t, err, tidemark.ErrCorrupt)
		} else {
			require.NotEmpty(t, rep.Problems, "byte %#x is silent", i)
		}
	}
}

func TestHeaderCopiesOfTwoHeaps(t *testing.T) {
	dir, other := filled(t, 3), filled(t, 3)
	b := readHeap(t, dir)
	copy(b[0x1000:0x2000], readHeap(t, other)[:0x1000])
	refused(t, copyHeap(t, b), tidemark.ErrCorrupt, "copies differ")
}

// flipped opens a heap with damage somewhere, in every way. Nothing may panic,
// hang, or return a value that was never put.
func flipped(t *testing.T, dir string, n int, what string) {
	t.Helper()
	look := func(m *hashmap.Map) {
		for i := range n {
			v, err := m.Get(key(i))
			if err == nil && string(v) != string(val(i)) {
				t.Fatalf("%s: wrong value of %s", what, key(i))
			}
		}
		for range m.All() {
		}
	}
	before := readHeap(t, dir)
	rep, err := tidemark.Verify(ctx, dir, nil)
	verified := err == nil && len(rep.Problems) == 0
	if err != nil {
		require.ErrorIs(t, err, tidemark.ErrCorrupt, what)
	}
	complete := func(m *hashmap.Map) {
		if verified && m.Len() < n {
			t.Fatalf("%s: %d of %d entries are gone and Verify has not said so", what, n-m.Len(), n)
		}
	}
	h, err := tidemark.Open(dir, manual())
	if err == nil {
		m, err := hashmap.Open(h, "m", nil)
		if err != nil {
			require.True(t, errors.Is(err, tidemark.ErrCorrupt) || errors.Is(err, tidemark.ErrKind), "%s: %v", what, err)
		} else {
			look(m)
			complete(m)
		}
		require.NoError(t, h.Close())
	} else {
		require.ErrorIs(t, err, tidemark.ErrCorrupt, what)
		require.ErrorContains(t, err, dir)
		require.True(t, bytes.Equal(before, readHeap(t, dir)), "%s: a failed Open has changed the file: %v", what, err)
	}
	writeHeap(t, dir, before)
	h, err = tidemark.Open(dir, &tidemark.Options{EpochLength: tidemark.Manual, Policy: tidemark.Salvage})
	if err != nil {
		require.ErrorIs(t, err, tidemark.ErrCorrupt, what)
		return
	}
	if m, err := hashmap.Open(h, "m", nil); err == nil {
		look(m)
		for i := range 20 {
			require.NoError(t, m.Put(key(1000000+i), val(i)), what)
		}
		require.NoError(t, m.Clear(), what)
	}
	require.NoError(t, h.Close())
}

func TestDamagedBytes(t *testing.T) {
	const n = 400
	dir := filled(t, n)
	whole := readHeap(t, dir)
	rounds := 80
	if testing.Short() {
		rounds = 30
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	units := len(whole) / persist.UnitSize
	for i := range rounds {
		b := bytes.Clone(whole)
		u := 1 + rnd.IntN(units-1)
		if b[u*persist.UnitSize] == 0 && b[u*persist.UnitSize+7] == 0 && i%8 != 0 {
			u = 1 + i%2
		}
		at := u*persist.UnitSize + rnd.IntN(persist.UnitSize)
		switch i % 4 {
		case 0:
			at = u*persist.UnitSize + rnd.IntN(8)
		case 1:
			at = u*persist.UnitSize + 64 + rnd.IntN(8<<10)
		}
		b[at] ^= 1 << rnd.IntN(8)
		writeHeap(t, dir, b)
		flipped(t, dir, n, fmt.Sprintf("bit of byte %#x", at))
	}
}

// Words with a right check byte that make no sense are no worse.
func TestForgedWords(t *testing.T) {
	const n = 400
	dir := filled(t, n)
	whole := readHeap(t, dir)
	rnd := rand.New(rand.NewPCG(3, 4))
	rounds := 100
	if testing.Short() {
		rounds = 25
	}
	units := len(whole) / persist.UnitSize
	for i := range rounds {
		b := bytes.Clone(whole)
		at := rnd.IntN(units) * persist.UnitSize
		v := rnd.Uint64() >> (8 + rnd.IntN(48))
		switch i % 4 {
		case 0: // a superblock header: units and owner
			if at == 0 {
				at = persist.UnitSize
			}
			v = uint64(rnd.IntN(4))<<32 | rnd.Uint64N(1<<rnd.IntN(24))<<8 | []uint64{255, 0, 5, 200, uint64(rnd.IntN(256))}[rnd.IntN(5)]
		case 1: // a control word: epoch and state
			at += 64 + 32*rnd.IntN(60)
			v = rnd.Uint64N(20)<<3 | rnd.Uint64N(8)
		case 2: // a payload's size
			at += 64 + 32*rnd.IntN(60)
			binary.LittleEndian.PutUint64(b[at+8:], 0xffff)
			binary.LittleEndian.PutUint64(b[at+16:], 1<<rnd.IntN(64)-1)
			v = binary.LittleEndian.Uint64(b[at:])
		case 3:
			at = []int{0x2000, 0x2040, 0x2048}[rnd.IntN(3)]
		}
		if i%4 != 2 {
			v = persist.Seal(v)
		}
		binary.LittleEndian.PutUint64(b[at:], v)
		writeHeap(t, dir, b)
		forged(t, dir, fmt.Sprintf("word %#x at %#x", v, at))
	}
}

// forged opens a heap that may lie consistently: it may lose data, not more.
func forged(t *testing.T, dir, what string) {
	t.Helper()
	before := readHeap(t, dir)
	for _, p := range []tidemark.Policy{tidemark.Strict, tidemark.Salvage} {
		within(t, 10*time.Second, what, func() {
			h, err := tidemark.Open(dir, &tidemark.Options{EpochLength: tidemark.Manual, Policy: p})
			if err != nil {
				if !errors.Is(err, tidemark.ErrCorrupt) {
					t.Errorf("%s: %v", what, err)
				}
				return
			}
			if m, err := hashmap.Open(h, "m", nil); err == nil {
				for range m.All() {
				}
				m.Clear()
			} else if !errors.Is(err, tidemark.ErrCorrupt) && !errors.Is(err, tidemark.ErrDurability) {
				t.Errorf("%s: %v", what, err)
			}
			if err := h.Close(); err != nil && !errors.Is(err, tidemark.ErrDurability) {
				t.Errorf("%s: %v", what, err)
			}
		})
		writeHeap(t, dir, before)
	}
}

// Salvage gives up nothing but what is damaged: data of a structure whose entry
// in the directory is damaged stays where it is.
func TestSalvageOfADamagedDirectory(t *testing.T) {
	dir := filled(t, 300)
	whole := readHeap(t, dir)
	at := bytes.Index(whole, []byte("hashmap"))
	require.Positive(t, at)
	b := bytes.Clone(whole)
	b[at] ^= 1
	writeHeap(t, dir, b)
	_, err := tidemark.Open(dir, nil)
	require.ErrorIs(t, err, tidemark.ErrCorrupt)

	var told atomic.Int32
	h := open(t, dir, &tidemark.Options{Policy: tidemark.Salvage, Damage: func(*tidemark.CorruptError) { told.Add(1) }})
	require.Positive(t, told.Load())
	require.Empty(t, h.Structures())
	require.NoError(t, openMap(t, h, "new").Put(key(1), bytes.Repeat(key(1), 20000)))
	require.NoError(t, h.Close())
	b = readHeap(t, dir)
	b[at] ^= 1
	writeHeap(t, dir, b)
	h = open(t, dir, nil)
	checkFilled(t, openMap(t, h, "m"), 300)
	require.Equal(t, 1, openMap(t, h, "new").Len())
}

func TestUserCodePanicsOnDamage(t *testing.T) {
	dir := filled(t, 300)
	b := readHeap(t, dir)
	for u := 2; u < 8; u++ { // the first is the directory's
		b[u*persist.UnitSize+64] ^= 0x55
	}
	writeHeap(t, dir, b)
	for _, workers := range []int{1, 4} {
		require.PanicsWithValue(t, "boom", func() {
			tidemark.Open(dir, &tidemark.Options{Policy: tidemark.Salvage, RecoveryWorkers: workers, Damage: func(*tidemark.CorruptError) { panic("boom") }})
		})
		_, err := tidemark.Open(dir, nil) // the lock is free
		require.ErrorIs(t, err, tidemark.ErrCorrupt)
	}
}
