package hashmap_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

type point struct{ X, Y int32 }

type user struct {
	Name string
	Tags []string
}

func openTyped[K, V any](t testing.TB, h *tidemark.Heap, name string, k hashmap.Codec[K], v hashmap.Codec[V]) *hashmap.Typed[K, V] {
	t.Helper()
	m, err := hashmap.OpenTyped(h, name, k, v, nil)
	require.NoError(t, err)
	return m
}

func TestTyped(t *testing.T) {
	dir := t.TempDir()
	for round := range 2 {
		h, err := tidemark.Open(dir, nil)
		require.NoError(t, err)
		counts := openTyped(t, h, "counts", hashmap.Fixed[point](), hashmap.Fixed[uint64]())
		users := openTyped(t, h, "users", hashmap.String(), hashmap.JSON[user]())
		if round == 0 {
			for i := range int32(100) {
				require.NoError(t, counts.Put(point{i, -i}, uint64(i)))
			}
			ok, err := counts.CompareAndSwap(point{1, -1}, 2, 3)
			require.NoError(t, err)
			require.False(t, ok)
			ok, err = counts.CompareAndSwap(point{1, -1}, 1, 1000)
			require.NoError(t, err)
			require.True(t, ok)
			ok, err = counts.PutIfAbsent(point{2, -2}, 7)
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, counts.Update(point{2, -2}, func(old uint64, ok bool) (uint64, bool) { return old + 50, ok }))
			require.NoError(t, counts.Update(point{3, -3}, func(uint64, bool) (uint64, bool) { return 0, false }))
			require.NoError(t, h.Do(func(op tidemark.Op) error {
				if _, err := counts.In(op).Delete(point{4, -4}); err != nil {
					return err
				}
				return users.In(op).Put("", user{Name: "nobody", Tags: []string{"a", "b"}})
			}))
			require.Error(t, h.Do(func(op tidemark.Op) error {
				if err := users.In(op).Put("x", user{}); err != nil {
					return err
				}
				return errors.New("no")
			}))
		}
		require.Equal(t, 98, counts.Len())
		var bad error
		all := maps.Collect(counts.All(&bad))
		require.NoError(t, bad)
		require.Len(t, all, 98)
		require.EqualValues(t, 1000, all[point{1, -1}])
		require.EqualValues(t, 52, all[point{2, -2}])
		u, err := users.Get("")
		require.NoError(t, err)
		require.Equal(t, user{"nobody", []string{"a", "b"}}, u)
		_, err = users.Get("x")
		require.ErrorIs(t, err, tidemark.ErrNotFound)
		ok, err := users.Has("x")
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, h.Close())
	}
}

func TestTypedRefusesOtherEncodings(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m := openTyped(t, h, "m", hashmap.Fixed[uint32](), hashmap.Fixed[point]())
	require.NoError(t, m.Put(1, point{1, 2}))
	require.NoError(t, m.Close())
	_, err = hashmap.OpenTyped(h, "m", hashmap.Fixed[uint32](), hashmap.Fixed[[2]int32](), nil)
	require.ErrorIs(t, err, tidemark.ErrSchema)
	_, err = hashmap.Open(h, "m", nil)
	require.ErrorIs(t, err, tidemark.ErrSchema)
	m = openTyped(t, h, "m", hashmap.Fixed[uint32](), hashmap.Fixed[point]())
	p, err := m.Get(1)
	require.NoError(t, err)
	require.Equal(t, point{1, 2}, p)

	// An entry that another program wrote as bytes does not decode.
	require.NoError(t, m.Map().Put([]byte("odd"), nil))
	var bad error
	for range m.All(&bad) {
	}
	require.ErrorIs(t, bad, tidemark.ErrType)
}

func TestFixedRefusesWhatHasNoFixedBytes(t *testing.T) {
	require.Panics(t, func() { hashmap.Fixed[string]() })
	require.Panics(t, func() { hashmap.Fixed[struct{ T time.Time }]() })
	require.Panics(t, func() {
		hashmap.Fixed[struct {
			A int8
			B int64
		}]()
	}, "padding")
	require.NotPanics(t, func() {
		hashmap.Fixed[struct {
			A int8
			_ [7]byte
			B int64
		}]()
	})
}

// A codec that fails half-way changes nothing and gets its error back.
func TestTypedCodecErrors(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m := openTyped(t, h, "m", hashmap.String(), hashmap.JSON[any]())
	require.NoError(t, m.Put("k", 1.0))
	require.Error(t, m.Put("k", func() {}))
	require.Error(t, m.Update("k", func(any, bool) (any, bool) { return make(chan int), true }))
	require.Error(t, m.Update("new", func(any, bool) (any, bool) { return make(chan int), true }))
	v, err := m.Get("k")
	require.NoError(t, err)
	require.Equal(t, 1.0, v)
	require.Equal(t, 1, m.Len())
}

func TestAllocations(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	tm := openTyped(t, h, "t", hashmap.Fixed[uint64](), hashmap.Fixed[point]())
	key, buf := []byte("a key of some length"), make([]byte, 0, 2000)
	vals := [][]byte{make([]byte, 100), make([]byte, 1000)}
	for _, c := range []struct {
		name string
		f    func(i int)
	}{
		{"AppendGet", func(int) { m.AppendGet(buf, key) }},
		{"Has", func(int) { m.Has(key) }},
		{"Put over", func(i int) { m.Put(key, vals[i%2]) }},
		{"PutIfAbsent, Delete", func(int) { m.Delete(key); m.PutIfAbsent(key, vals[0]) }},
		{"CompareAndSwap", func(int) { m.CompareAndSwap(key, vals[0], vals[0]) }},
		{"Typed.Put, Get", func(int) { tm.Put(7, point{1, 2}); tm.Get(7) }},
	} {
		m.Put(key, vals[0])
		i := 0
		run := func() { i++; c.f(i) }
		for range 5000 { // grow the lists of an epoch
			run()
		}
		if n := testing.AllocsPerRun(2000, run); n > 0 && !raceEnabled {
			t.Errorf("%s allocates %v times", c.name, n)
		}
	}
}
