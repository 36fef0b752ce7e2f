//go:build linux

package tidemark_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/recovery"
)

func typeErr[T any]() error { _, err := payload.TypeOf[T]("t"); return err }

func TestPayloadTypesWithPointersAreRefused(t *testing.T) {
	type in[T any] struct {
		A uint8
		B struct{ C [2]struct{ D T } }
	}
	for name, f := range map[string][2]func() error{
		"string":         {typeErr[string], typeErr[in[string]]},
		"slice":          {typeErr[[]byte], typeErr[in[[]byte]]},
		"map":            {typeErr[map[int]int], typeErr[in[map[int]int]]},
		"pointer":        {typeErr[*int64], typeErr[in[*int64]]},
		"interface":      {typeErr[any], typeErr[in[error]]},
		"chan":           {typeErr[chan int], typeErr[in[chan int]]},
		"func":           {typeErr[func()], typeErr[in[func()]]},
		"unsafe.Pointer": {typeErr[unsafe.Pointer], typeErr[in[unsafe.Pointer]]},
		"uintptr":        {typeErr[uintptr], typeErr[in[uintptr]]},
		"int":            {typeErr[int], typeErr[in[int]]},
		"uint":           {typeErr[uint], typeErr[in[uint]]},
		"time.Time":      {typeErr[time.Time], typeErr[in[time.Time]]},
		"sync.Mutex":     {typeErr[sync.Mutex], typeErr[in[sync.Mutex]]},
		"atomic.Int64":   {typeErr[atomic.Int64], typeErr[in[atomic.Int64]]},
		"of no length":   {typeErr[[0]*int], typeErr[in[[0]string]]},
	} {
		require.ErrorIs(t, f[0](), payload.ErrType, name)
		err := f[1]()
		require.ErrorIs(t, err, payload.ErrType, name)
		require.ErrorContains(t, err, ".B.C[].D", name)
	}
	require.ErrorIs(t, typeErr[struct{}](), payload.ErrType)
	require.ErrorIs(t, typeErr[[0]uint64](), payload.ErrType)
	require.Panics(t, func() { payload.MustType[string]("s") })
	require.NoError(t, typeErr[time.Duration]())
	require.NoError(t, typeErr[in[float64]]())
}

type (
	blank struct {
		A uint8
		_ [7]byte
		B uint64
		_ struct{}
	}
	pair[A, B any] struct {
		First  A
		Second B
	}
	big struct{ Words [700]uint64 }
)

func roundTrip[T comparable](t *testing.T, v, w T) {
	t.Helper()
	typ, err := payload.TypeOf[T]("t")
	require.NoError(t, err)
	dir := t.TempDir()
	h := open(t, dir, nil)
	s, err := h.OpenStructure("s", "k", typ.Descriptor())
	require.NoError(t, err)
	for i := range 100 {
		var ref payload.Ref
		require.NoError(t, h.Do(func(op tidemark.Op) (err error) {
			ref, err = typ.New(op, s.Space(), v)
			return err
		}))
		if i%3 == 0 {
			require.NoError(t, h.Tick(ctx))
		}
		require.NoError(t, h.Do(func(op tidemark.Op) (err error) {
			ref, err = typ.Update(op, s.Space(), ref, func(p *T) {
				if uintptr(unsafe.Pointer(p))%8 != 0 {
					t.Errorf("%p is not aligned", p)
				}
				if *p != v {
					t.Errorf("%v, not %v", *p, v)
				}
				*p = w
			})
			return err
		}))
		require.NoError(t, h.Do(func(op tidemark.Op) error {
			got, err := typ.Get(op, s.Space(), ref)
			require.Equal(t, w, got)
			return err
		}))
	}
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	s, err = h.OpenStructure("s", "k", typ.Descriptor())
	require.NoError(t, err)
	n := 0
	require.NoError(t, s.Rebuild(ctx, 1, func(_ int, it *recovery.Iterator) error {
		p, err := typ.View(s.Space(), it.Ref())
		require.Equal(t, w, *p)
		n++
		return err
	}))
	require.Equal(t, 100, n)
}

func TestPayloadTypesOfAllForms(t *testing.T) {
	roundTrip[uint8](t, 1, 2)
	roundTrip(t, blank{A: 1, B: 2}, blank{A: 3, B: 4})
	roundTrip(t, pair[uint8, float64]{1, 2}, pair[uint8, float64]{3, 4})
	roundTrip(t, big{[700]uint64{1, 699: 2}}, big{[700]uint64{3, 699: 4}})
	roundTrip(t, [3]complex128{1}, [3]complex128{2})
}

func TestChangedLayoutIsRefused(t *testing.T) {
	type first struct {
		A uint32
		B uint32
		C uint64
	}
	type added struct {
		A uint32
		B uint32
		C uint64
		D uint64
	}
	type reordered struct {
		B uint32
		A uint32
		C uint64
	}
	type renamed struct {
		A uint32
		X uint32
		C uint64
	}
	type retyped struct {
		A uint32
		B int32
		C uint64
	}
	type same struct {
		A uint32
		B uint32
		C uint64
	}
	dir := t.TempDir()
	d := payload.MustType[first]("item").Descriptor()
	extra := payload.MustType[uint64]("extra").Descriptor()
	for i := range 2 { // in the session that made it, and later
		h := open(t, dir, nil)
		if i == 0 {
			s, err := h.OpenStructure("s", "k", d)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
		for name, types := range map[string][]payload.Descriptor{
			"added":     {payload.MustType[added]("item").Descriptor()},
			"reordered": {payload.MustType[reordered]("item").Descriptor()},
			"renamed":   {payload.MustType[renamed]("item").Descriptor()},
			"retyped":   {payload.MustType[retyped]("item").Descriptor()},
			"another":   {payload.MustType[first]("other").Descriptor()},
			"more":      {d, extra},
			"none":      nil,
			"order":     {extra, d},
		} {
			_, err := h.OpenStructure("s", "k", types...)
			require.ErrorIs(t, err, tidemark.ErrSchema, name)
			require.ErrorContains(t, err, dir)
			require.ErrorContains(t, err, "payload type", name)
		}
		s, err := h.OpenStructure("s", "k", payload.MustType[same]("item").Descriptor())
		require.NoError(t, err, "what was refused is not open")
		require.NoError(t, s.Close())
		require.NoError(t, h.Close())
	}
}

func TestStructureNames(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	long := strings.Repeat("n", tidemark.MaxName)
	for _, c := range [][2]string{{"", "k"}, {"n", ""}, {long + "x", "k"}, {"n", long + "x"}} {
		_, err := h.OpenStructure(c[0], c[1])
		require.ErrorIs(t, err, tidemark.ErrKeyTooLarge)
		require.ErrorContains(t, err, "1 to 1024")
	}
	_, err := h.OpenStructure("n", "k", payload.Descriptor{Name: ""})
	require.ErrorIs(t, err, tidemark.ErrKeyTooLarge)
	for _, name := range []string{long, "\x00", "a/b", "(directory)", "\xff\xfe", "ö"} {
		s, err := h.OpenStructure(name, long)
		require.NoError(t, err)
		require.Equal(t, name, s.Name())
	}
	require.Len(t, h.Structures(), 6)
}

func TestStructureKindAndSharing(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, nil)
	s, err := h.OpenStructure("s", "list")
	require.NoError(t, err)
	_, err = h.OpenStructure("s", "list")
	require.ErrorIs(t, err, tidemark.ErrLocked)
	require.ErrorContains(t, err, dir)
	for range 2 {
		_, err = h.OpenStructure("s", "tree")
		require.ErrorIs(t, err, tidemark.ErrKind)
		require.ErrorContains(t, err, `"s" is a list, not a tree`)
		require.NoError(t, s.Close())
	}
	_, err = h.Inspect("s")
	require.ErrorIs(t, err, tidemark.ErrUnsupported)
	require.NoError(t, h.Close())

	h, err = tidemark.OpenReadOnly(dir, nil)
	require.NoError(t, err)
	_, err = h.OpenStructure("none", "k")
	require.ErrorIs(t, err, tidemark.ErrNotFound)
	require.ErrorIs(t, err, tidemark.ErrReadOnly)
	_, err = h.Inspect("none")
	require.ErrorIs(t, err, tidemark.ErrNotFound)
	_, err = h.Inspect("s")
	require.NoError(t, err)
	require.ErrorIs(t, h.Drop(ctx, "s"), tidemark.ErrLocked)
	require.NoError(t, h.Close())
}

func TestDrop(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, manual())
	require.ErrorIs(t, h.Drop(ctx, "m"), tidemark.ErrNotFound)
	m := openMap(t, h, "m")
	require.ErrorIs(t, h.Drop(ctx, "m"), tidemark.ErrLocked)
	for i := range 500 {
		require.NoError(t, m.Put(key(i), page(i)))
	}
	used := h.Metrics().UsedBytes
	require.NoError(t, m.Close())
	require.NoError(t, h.Drop(ctx, "m"))
	require.Less(t, h.Metrics().UsedBytes, used/10)
	m = openMap(t, h, "m")
	require.Zero(t, m.Len())
	require.NoError(t, m.Put(key(1), val(1)))
	require.NoError(t, m.Close())
	require.NoError(t, h.Sync(ctx))

	// One that cannot be waited for goes on later; nobody can use what is doomed.
	op := h.Begin()
	require.NoError(t, h.Tick(ctx))
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, h.Drop(short, "m"), context.DeadlineExceeded)
	op.End()
	_, err := h.OpenStructure("m", "hashmap")
	require.ErrorIs(t, err, tidemark.ErrLocked)
	require.NoError(t, h.Drop(ctx, "m"))
	require.NoError(t, openMap(t, h, "m").Put(key(2), val(2)))
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	m = openMap(t, h, "m")
	require.Equal(t, 1, m.Len())
	ok, err := m.Has(key(2))
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, h.Close())

	h, err = tidemark.OpenReadOnly(dir, nil)
	require.NoError(t, err)
	require.ErrorIs(t, h.Drop(ctx, "m"), tidemark.ErrReadOnly)
	require.NoError(t, h.Close())
}

func TestManyStructures(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 50
	}
	dir := t.TempDir()
	h := open(t, dir, nil)
	for i := range n {
		require.NoError(t, openMap(t, h, fmt.Sprint(i)).Put(key(i), val(i)))
	}
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	require.Len(t, h.Structures(), n)
	for i := range n {
		m := openMap(t, h, fmt.Sprint(i))
		v, err := m.Get(key(i))
		require.NoError(t, err)
		require.Equal(t, val(i), v)
		require.NoError(t, m.Close())
		if i%2 == 0 {
			require.NoError(t, h.Drop(ctx, fmt.Sprint(i)))
		}
	}
	require.NoError(t, h.Close())
	rep, err := tidemark.Verify(ctx, dir, nil)
	require.NoError(t, err)
	require.Empty(t, rep.Problems)
}
