package hashmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// What is done most often allocates nothing.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	tm := openTyped(t, h, "t", hashmap.Fixed[uint64](), hashmap.Fixed[point]())
	tp := openTyped(t, h, "p", hashmap.Fixed[padded](), hashmap.Fixed[padded]())
	key, none, buf := []byte("a key of some length"), []byte("none"), make([]byte, 0, 2000)
	small, same, large := make([]byte, 100), make([]byte, 100), make([]byte, 1000)
	vals := [][]byte{small, large}
	var p padded
	for _, c := range []struct {
		name string
		f    func(i int)
	}{
		{"AppendGet", func(int) { m.AppendGet(buf, key) }},
		{"AppendGet of none", func(int) { m.AppendGet(buf, none) }},
		{"Has", func(int) { m.Has(key); m.Has(none) }},
		{"Put over, of one size", func(int) { m.Put(key, small) }},
		{"Put over, of two sizes", func(i int) { m.Put(key, vals[i%2]) }},
		{"Delete, PutIfAbsent", func(int) { m.Delete(key); m.PutIfAbsent(key, small) }},
		{"Delete of none", func(int) { m.Delete(none) }},
		{"PutIfAbsent of one", func(int) { m.PutIfAbsent(key, large) }},
		{"CompareAndSwap", func(int) { m.CompareAndSwap(key, small, same); m.CompareAndSwap(key, large, same) }},
		{"CompareAndDelete", func(int) { m.CompareAndDelete(key, small); m.CompareAndSwap(key, nil, small) }},
		{"Typed.Put, Get, Has", func(int) { tm.Put(7, point{1, 2}); tm.Get(7); tm.Has(8) }},
		{"Typed.PutIfAbsent, Delete", func(int) { tm.PutIfAbsent(9, point{1, 2}); tm.Delete(9) }},
		{"Typed.CompareAndSwap", func(int) { tm.CompareAndSwap(7, point{1, 2}, point{1, 2}) }},
		{"Typed.Update", func(int) {
			tm.Update(7, func(p point, ok bool) (point, bool) { return point{p.Y, p.X}, true })
		}},
		{"Typed.Put with padding", func(int) { tp.Put(p, p); tp.Get(p) }},
	} {
		m.Put(key, small)
		i := 0
		run := func() { i++; c.f(i) }
		for range 5000 { // grow the lists of an epoch
			run()
		}
		if n := testing.AllocsPerRun(2000, run); n > 0 {
			t.Errorf("%s allocates %v times", c.name, n)
		}
	}
}
