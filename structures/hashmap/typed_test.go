package hashmap_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

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
	require.Panics(t, func() { hashmap.Fixed[int]() }, "its size depends on the platform")
	require.Panics(t, func() { hashmap.Fixed[struct{}]() })
	defer func() {
		err, _ := recover().(error)
		require.ErrorIs(t, err, tidemark.ErrType)
		require.ErrorContains(t, err, ".B[].C", "names the field")
	}()
	hashmap.Fixed[struct {
		A int8
		B [2]struct{ C *int }
	}]()
}

// padded has every kind of bytes that == does not look at.
type padded struct {
	A int8 // and 7 of padding
	B int64
	_ [3]byte
	C [2]struct {
		X int16
		_ int8 // and 1 of padding
	}
	_ struct{ P, Q int32 }
	D bool // and padding at the end
}

// Equal values are one key, whatever their padding holds.
func TestFixedIgnoresPadding(t *testing.T) {
	c := hashmap.Fixed[padded]()
	var clean padded
	clean.A, clean.B, clean.C[1].X, clean.D = 1, 2, 3, true
	want, err := c.Append(nil, clean)
	require.NoError(t, err)
	n := 0
	for at := range unsafe.Sizeof(clean) {
		dirty := clean
		(*[unsafe.Sizeof(clean)]byte)(unsafe.Pointer(&dirty))[at] ^= 0x10
		if at == unsafe.Offsetof(clean.D) || dirty != clean {
			continue // a bool holds nothing but 0 and 1
		}
		n++
		b, err := c.Append([]byte("before"), dirty)
		require.NoError(t, err)
		require.Equal(t, "before"+string(want), string(b), "byte %d", at)
	}
	require.Equal(t, int(unsafe.Sizeof(clean))-1-8-2*2-1, n)
	back, err := c.Decode(want)
	require.NoError(t, err)
	require.Equal(t, clean, back)
}

// Floats count by their bits.
func TestFixedFloats(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m := openTyped(t, h, "m", hashmap.Fixed[float64](), hashmap.Bytes())
	zero := 0.0
	for _, f := range []float64{math.NaN(), zero, -zero, math.Copysign(0, -1), math.Inf(-1)} {
		require.NoError(t, m.Put(f, fmt.Append(nil, f)))
		v, err := m.Get(f)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(f), string(v))
	}
	require.Equal(t, 4, m.Len())
}

// Every method, alone and within an operation, against what a map would do.
func TestTypedMethods(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m := openTyped(t, h, "m", hashmap.String(), hashmap.String())
	type methods interface {
		Get(string) (string, error)
		Has(string) (bool, error)
		Put(string, string) error
		PutIfAbsent(string, string) (bool, error)
		CompareAndSwap(k, old, val string) (bool, error)
		CompareAndDelete(k, old string) (bool, error)
		Delete(string) (bool, error)
		Update(string, func(string, bool) (string, bool)) error
		Clear() error
	}
	run := func(m methods) error {
		is := func(want bool) func(bool, error) {
			return func(got bool, err error) {
				t.Helper()
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
		holds := func(k, want string) {
			t.Helper()
			v, err := m.Get(k)
			require.NoError(t, err)
			require.Equal(t, want, v)
		}
		is(false)(m.Has("k"))
		is(false)(m.CompareAndSwap("k", "", "1")) // an empty value is not an absent one
		is(false)(m.CompareAndDelete("k", ""))
		is(true)(m.PutIfAbsent("k", ""))
		is(false)(m.PutIfAbsent("k", "2"))
		is(false)(m.CompareAndSwap("k", "x", "3"))
		is(true)(m.CompareAndSwap("k", "", "4"))
		holds("k", "4")
		is(false)(m.CompareAndDelete("k", ""))
		is(true)(m.CompareAndDelete("k", "4"))
		is(false)(m.Delete("k"))
		absent := func(old string, ok bool) (string, bool) {
			require.False(t, ok)
			require.Empty(t, old)
			return "", false
		}
		require.NoError(t, m.Update("k", absent))
		is(false)(m.Has("k"))
		for range 3 {
			require.NoError(t, m.Update("k", func(old string, ok bool) (string, bool) { return old + "u", true }))
		}
		holds("k", "uuu")
		require.NoError(t, m.Update("k", func(string, bool) (string, bool) { return "", false }))
		_, err := m.Get("k")
		require.ErrorIs(t, err, tidemark.ErrNotFound)
		require.NoError(t, m.Put("", "empty"))
		is(true)(m.Delete(""))
		require.NoError(t, m.Put("a", "1"))
		require.NoError(t, m.Put("b", "2"))
		require.NoError(t, m.Clear())
		is(false)(m.Has("a"))
		return m.Put("end", "end")
	}
	require.NoError(t, run(m))
	require.NoError(t, m.Clear())
	require.Error(t, h.Do(func(op tidemark.Op) error {
		require.NoError(t, run(m.In(op)))
		return errors.New("no")
	}))
	require.Zero(t, m.Len())
	require.NoError(t, h.Do(func(op tidemark.Op) error { return run(m.In(op)) }))
	var bad error
	require.Equal(t, []string{"end"}, slices.Collect(m.Keys(&bad)))
	require.Equal(t, map[string]string{"end": "end"}, maps.Collect(m.All(&bad)))
	require.NoError(t, bad)
	for range m.All(nil) {
		break
	}
	require.NoError(t, m.Close())
	_, err = m.Get("end")
	require.ErrorIs(t, err, tidemark.ErrClosed)
}

// A value that does not decode, and a codec or callback that panics, change nothing
// and leave nothing locked.
func TestTypedUpdateThatFails(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m := openTyped(t, h, "m", hashmap.String(), hashmap.JSON[int]())
	require.NoError(t, m.Map().Put([]byte("bad"), []byte("{")))
	_, err = m.Get("bad")
	require.Error(t, err)
	require.Error(t, m.Update("bad", func(int, bool) (int, bool) { t.Error("called"); return 0, true }))
	b, err := m.Map().Get([]byte("bad"))
	require.NoError(t, err)
	require.Equal(t, "{", string(b))
	for _, in := range []func(func(func(string, func(int, bool) (int, bool)) error)){
		func(f func(func(string, func(int, bool) (int, bool)) error)) { f(m.Update) },
		func(f func(func(string, func(int, bool) (int, bool)) error)) {
			h.Do(func(op tidemark.Op) error { f(m.In(op).Update); return nil })
		},
	} {
		require.Panics(t, func() {
			in(func(update func(string, func(int, bool) (int, bool)) error) {
				update("n", func(int, bool) (int, bool) { return 1, true })
				update("n", func(int, bool) (int, bool) { panic("boom") })
			})
		})
		require.NoError(t, m.Put("n", 2))
		n, err := m.Get("n")
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, err = m.Delete("n")
		require.NoError(t, err)
	}
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
