package persist

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSealFindsEveryFlip(t *testing.T) {
	require.Zero(t, Seal(0))
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		v := rnd.Uint64() >> 8
		w := Seal(v)
		got, ok := Unseal(w)
		if got != v || !ok {
			t.Fatalf("Unseal(Seal(%#x)) = %#x, %v", v, got, ok)
		}
		for b := range 64 {
			if _, ok := Unseal(w ^ 1<<b); ok {
				t.Fatalf("flip of bit %d of %#x is not found", b, w)
			}
		}
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		off   Off
		n     int
		first Off
		count int
	}{
		{0, 0, 0, 0}, {70, 0, 64, 0}, {70, -1, 64, 0}, {0, 1, 0, 1}, {0, 64, 0, 1}, {0, 65, 0, 2},
		{63, 1, 0, 1}, {63, 2, 0, 2}, {64, 64, 64, 1}, {65, 64, 64, 2}, {100, 200, 64, 4}, {1 << 40, 1 << 30, 1 << 40, 1 << 24},
	} {
		first, count := Lines(c.off, c.n)
		require.Equal(t, []any{c.first, c.count}, []any{first, count}, "Lines(%d, %d)", c.off, c.n)
	}
}

func TestStoreWord(t *testing.T) {
	var w [3]uint64
	StoreWord(&w[1], 0x0123456789abcdef)
	require.Equal(t, [3]uint64{0, 0x0123456789abcdef, 0}, w)
}

// Each write-back routine leaves the bytes as they are and stays in its range; that
// it reaches media cannot be seen from here.
func TestWriteBackLeavesBytes(t *testing.T) {
	r, err := OpenDir(t.TempDir(), Config{Domain: Emulated})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, r.Grow(2*UnitSize))
	b := r.Bytes(UnitSize, UnitSize)
	for i := range b {
		b[i] = byte(i * 7)
	}
	h := r.Handle()
	for n := 1; n <= 1000; n += 13 {
		h.WriteBack(UnitSize+Off(n), n)
	}
	h.Order()
	require.NoError(t, h.Fence())
	for i := range b {
		if b[i] != byte(i*7) {
			t.Fatalf("byte %d has changed", i)
		}
	}
	c := r.Counts()
	require.NotZero(t, c.Lines)
	require.EqualValues(t, 1, c.Orders)
	require.EqualValues(t, 1, c.Fences)
}

// Arbitrary bytes are a header of this format or an error of a known kind.
func FuzzDecodeHeader(f *testing.F) {
	good := NewHeader().Encode()
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte("SQLite format 3\x00"))
	newer := NewHeader()
	newer.Format++
	f.Add(newer.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHeader("f", 0, b)
		switch {
		case err == nil:
			if string(h.Encode()) != string(b[:StaticSize]) {
				t.Fatalf("accepted %x, which encodes as %x", b, h.Encode())
			}
		case !errors.Is(err, ErrForeign) && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrCorrupt):
			t.Fatal(err)
		}
		file := append(append(append([]byte{}, b...), make([]byte, int(ClockOff))...)[:ClockOff-StaticSize], good...)
		decodeHeaders("f", file)
	})
}
