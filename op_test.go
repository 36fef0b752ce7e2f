//go:build linux

package tidemark_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/recovery"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func noneActive(t *testing.T, h *tidemark.Heap) {
	t.Helper()
	require.Zero(t, h.Metrics().Epoch.Active)
}

func TestOperationUsedAfterItsEnd(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	typ := payload.MustType[[4]uint64]("four")
	s, err := h.OpenStructure("s", "k", typ.Descriptor())
	require.NoError(t, err)
	require.NoError(t, m.Put(key(0), val(0)))
	ended, aborted := h.Begin(), h.Begin()
	ref, err := typ.New(ended, s.Space(), [4]uint64{1})
	require.NoError(t, err)
	ended.End()
	aborted.Abort()
	for _, op := range []tidemark.Op{ended, aborted, {}} {
		op.End()
		op.Abort()
		require.Zero(t, op.Epoch())
		x := m.In(op)
		_, errGet := x.Get(key(0))
		_, errHas := x.Has(key(0))
		_, errDelete := x.Delete(key(0))
		_, errNew := typ.New(op, s.Space(), [4]uint64{})
		errs := onPayload(typ, s.Space(), op, ref)
		errs["Tx.Get"], errs["Tx.Has"], errs["Tx.Delete"], errs["Type.New"] = errGet, errHas, errDelete, errNew
		errs["Tx.Put"] = x.Put(key(1), val(1))
		errs["Tx.Clear"] = x.Clear()
		for name, err := range errs {
			require.ErrorIs(t, err, tidemark.ErrOpEnded, name)
		}
	}
	require.Equal(t, 1, m.Len())
	noneActive(t, h)
	// Do is unimpressed by user code that ends its operation.
	require.NoError(t, h.Do(func(op tidemark.Op) error { op.End(); return nil }))
	require.NoError(t, h.Do(func(op tidemark.Op) error { op.Abort(); return nil }))
}

func TestManyOperationsAtOnce(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	ops := make([]tidemark.Op, 8000)
	for i := range ops {
		ops[i] = h.Begin()
		if i%100 == 0 {
			require.NoError(t, m.In(ops[i]).Put(key(i), val(i)))
		}
	}
	require.Equal(t, len(ops), h.Metrics().Epoch.Active)
	for i, op := range ops {
		if i%200 == 0 {
			op.Abort()
		} else {
			op.End()
		}
	}
	noneActive(t, h)
	require.Equal(t, 40, m.Len())
	require.NoError(t, h.Sync(ctx))

	if testing.Short() {
		return
	}
	// More than there are slots: the others wait.
	var wg sync.WaitGroup
	goOn := make(chan struct{})
	for i := range 10000 {
		wg.Go(func() {
			op := h.Begin()
			defer op.End()
			if i < 8000 {
				<-goOn
			}
		})
	}
	require.Eventually(t, func() bool { return h.Metrics().Epoch.Active >= 8000 }, 10*time.Second, time.Millisecond)
	close(goOn)
	within(t, 10*time.Second, "Begin", wg.Wait)
	noneActive(t, h)
}

// A step that fails in the middle of Do leaves nothing of it, in any map, now or
// after a restart; readers never miss what was there.
func TestFailedStepLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, nil)
	a, b := openMap(t, h, "a"), openMap(t, h, "b")
	for i := range 300 {
		require.NoError(t, a.Put(key(i), val(i)))
		require.NoError(t, b.Put(key(i), val(i)))
	}
	boom := errors.New("boom")
	huge := make([]byte, hashmap.MaxKey+1)
	for name, c := range map[string]struct {
		last func(op tidemark.Op) error
		want error
	}{
		"error":     {func(tidemark.Op) error { return boom }, boom},
		"large key": {func(op tidemark.Op) error { return a.In(op).Put(huge, nil) }, tidemark.ErrKeyTooLarge},
		"not found": {func(op tidemark.Op) error { _, err := a.In(op).Get([]byte("none")); return err }, tidemark.ErrNotFound},
		"panic":     {func(tidemark.Op) error { panic("boom") }, nil},
		"nil map":   {func(op tidemark.Op) error { var m *hashmap.Map; return m.In(op).Put(nil, nil) }, nil},
		"aborted":   {func(op tidemark.Op) error { op.Abort(); return a.In(op).Put(nil, nil) }, tidemark.ErrOpEnded},
	} {
		t.Run(name, func(t *testing.T) {
			do := func() error {
				return h.Do(func(op tidemark.Op) error {
					x, y := a.In(op), b.In(op)
					for i := range 600 {
						require.NoError(t, x.Put(key(i), []byte("new")))
						_, err := y.Delete(key(i))
						require.NoError(t, err)
						if i%3 == 0 {
							require.NoError(t, x.Put(key(i), bytes.Repeat([]byte("large"), 20000)))
							require.NoError(t, y.Put(key(i), []byte("back")))
						}
					}
					return c.last(op)
				})
			}
			if c.want != nil {
				require.ErrorIs(t, do(), c.want)
			} else {
				require.Panics(t, func() { do() })
			}
			noneActive(t, h)
			checkFilled(t, a, 300)
			checkFilled(t, b, 300)
			require.NoError(t, h.Do(func(op tidemark.Op) error { return a.In(op).Put(key(0), val(0)) }), "writes go on at once")
		})
	}
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	checkFilled(t, openMap(t, h, "a"), 300)
	checkFilled(t, openMap(t, h, "b"), 300)
}

func TestDoBeginsAgain(t *testing.T) {
	h := open(t, t.TempDir(), manual())
	m := openMap(t, h, "m")
	runs := 0
	require.NoError(t, h.Do(func(op tidemark.Op) error {
		if runs++; runs == 1 {
			require.NoError(t, m.In(op).Put(key(1), val(1)))
			require.NoError(t, h.Tick(ctx))
			require.NoError(t, m.Put(key(0), val(0))) // in a newer epoch
		}
		v, err := m.In(op).Get(key(0))
		if runs == 1 {
			require.ErrorIs(t, err, tidemark.ErrOldSeesNew)
			return fmt.Errorf("wrapped: %w", err)
		}
		require.Equal(t, val(0), v)
		return err
	}))
	require.Equal(t, 2, runs)
	ok, err := m.Has(key(1))
	require.NoError(t, err)
	require.False(t, ok, "the first run is undone")

	runs = 0
	require.NoError(t, h.Do(func(tidemark.Op) error {
		if runs++; runs < 5 {
			return tidemark.ErrConflict
		}
		return nil
	}))
	noneActive(t, h)
}

func TestNestedDo(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	boom := errors.New("boom")
	err := h.Do(func(op tidemark.Op) error {
		require.NoError(t, m.In(op).Put([]byte("outer"), nil))
		require.NoError(t, h.Do(func(op tidemark.Op) error { return m.In(op).Put([]byte("inner"), nil) }))
		require.NoError(t, m.Put([]byte("alone"), nil))
		return boom
	})
	require.ErrorIs(t, err, boom)
	require.Equal(t, 2, m.Len())
	noneActive(t, h)
}

func TestOperationOfAnotherHeap(t *testing.T) {
	a, b := open(t, t.TempDir(), nil), open(t, t.TempDir(), nil)
	m := openMap(t, b, "m")
	require.NoError(t, m.Put(key(0), val(0)))
	require.ErrorIs(t, a.Do(func(op tidemark.Op) error { return m.In(op).Put(key(1), val(1)) }), tidemark.ErrOtherHeap)
	require.ErrorIs(t, a.Do(func(op tidemark.Op) error { return m.In(op).Put(key(1), make([]byte, 100<<10)) }), tidemark.ErrOtherHeap)
	require.ErrorIs(t, a.Do(func(op tidemark.Op) error { _, err := m.In(op).Delete(key(0)); return err }), tidemark.ErrOtherHeap)
	require.ErrorIs(t, a.Do(func(op tidemark.Op) error { return m.In(op).Clear() }), tidemark.ErrOtherHeap)
	checkFilled(t, m, 1)
}

// Refs that name nothing of the structure are errors, wherever they point.
func TestRefsThatNameNothing(t *testing.T) {
	h := open(t, t.TempDir(), manual())
	typ := payload.MustType[[4]uint64]("four")
	s, err := h.OpenStructure("s", "k", typ.Descriptor())
	require.NoError(t, err)
	other, err := h.OpenStructure("other", "k", typ.Descriptor())
	require.NoError(t, err)
	create := func(s *tidemark.Structure) (ref payload.Ref) {
		require.NoError(t, h.Do(func(op tidemark.Op) (err error) {
			ref, err = typ.New(op, s.Space(), [4]uint64{1})
			return err
		}))
		return ref
	}
	live, foreign, stale := create(s), create(other), create(s)
	require.NoError(t, h.Do(func(op tidemark.Op) error { return s.Space().Delete(op, stale) }))
	size := payload.Ref(h.Metrics().FileBytes)
	refs := []payload.Ref{0, 1, 8, 64, 0x2000, 0x2040, foreign, stale, live + 1, live + 8, live + 16, live + 32, live - 32, live &^ 0xffff,
		size - 8, size - 64, size, size + 64, 1 << 32, 1 << 40, 1<<63 + 64, ^payload.Ref(0), ^payload.Ref(63)}
	for _, ref := range refs {
		op := h.Begin()
		for name, err := range onPayload(typ, s.Space(), op, ref) {
			if ref == stale && name == "Space.Reclaim" {
				continue // a retired payload may be reclaimed
			}
			require.ErrorIs(t, err, tidemark.ErrStaleRef, "%s of %#x", name, ref)
		}
		op.Abort()
		_, err := typ.View(s.Space(), ref)
		if ref != stale {
			require.ErrorIs(t, err, tidemark.ErrStaleRef)
		}
	}
	require.NoError(t, h.Do(func(op tidemark.Op) error {
		_, err := typ.Get(op, s.Space(), live)
		require.NoError(t, err)
		require.ErrorIs(t, s.Space().Reclaim(op, live), tidemark.ErrStaleRef)
		require.NoError(t, s.Space().Delete(op, live))
		require.ErrorIs(t, s.Space().Delete(op, live), tidemark.ErrStaleRef)
		_, err = typ.Get(op, s.Space(), live)
		require.ErrorIs(t, err, tidemark.ErrStaleRef)
		return nil
	}))
	require.NoError(t, h.Reclaim(ctx))
	require.NoError(t, h.Close())
}

func TestReadOnlyHeapRefusesChanges(t *testing.T) {
	dir := filled(t, 200)
	before := tree(t, dir)
	h, err := tidemark.OpenReadOnly(dir, nil)
	require.NoError(t, err)
	m := openMap(t, h, "m")
	for i := range 200 { // of every size class that has free blocks
		require.ErrorIs(t, m.Put(fmt.Appendf(nil, "n%d", i), val(i)), tidemark.ErrReadOnly)
		require.ErrorIs(t, m.Put(key(i), val(i)), tidemark.ErrReadOnly)
	}
	_, err = m.Delete(key(0))
	require.ErrorIs(t, err, tidemark.ErrReadOnly)
	require.ErrorIs(t, m.Clear(), tidemark.ErrReadOnly)
	require.ErrorIs(t, m.Put(key(0), make([]byte, 1<<20)), tidemark.ErrReadOnly)
	require.ErrorIs(t, h.Do(func(op tidemark.Op) error { return m.In(op).Put(key(0), nil) }), tidemark.ErrReadOnly)
	require.NoError(t, h.Sync(ctx))
	checkFilled(t, m, 200)
	require.NoError(t, h.Close())
	sameTree(t, before, dir)
}

// Whatever user code panics, nothing is left half done, locked or running.
func TestUserCodePanics(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	for i := range 100 {
		require.NoError(t, m.Put(key(i), val(i)))
	}
	s, err := h.OpenStructure("s", "k")
	require.NoError(t, err)
	var ref payload.Ref
	require.NoError(t, h.Do(func(op tidemark.Op) (err error) {
		ref, err = s.Space().New(op, 1, []byte("content"))
		return err
	}))
	boom := func(old []byte, ok bool) ([]byte, bool) { panic("boom") }
	for name, f := range map[string]func(){
		"Do":         func() { h.Do(func(tidemark.Op) error { panic("boom") }) },
		"Update":     func() { m.Update(key(1), boom) },
		"Tx.Update":  func() { h.Do(func(op tidemark.Op) error { return m.In(op).Update(key(1), boom) }) },
		"All":        func() { m.All()(func(k, v []byte) bool { panic("boom") }) },
		"Keys":       func() { m.Keys()(func(k []byte) bool { panic("boom") }) },
		"Keys in Do": func() { h.Do(func(tidemark.Op) error { m.Keys()(func(k []byte) bool { panic("boom") }); return nil }) },
		"Space.Update in place": func() {
			h.Do(func(op tidemark.Op) error {
				r, err := s.Space().New(op, 1, []byte("x"))
				require.NoError(t, err)
				s.Space().Update(op, r, func(b []byte) { b[0]++; panic("boom") })
				return nil
			})
		},
		"Space.Update": func() {
			h.Do(func(op tidemark.Op) error {
				_, err := s.Space().Update(op, ref, func(b []byte) { b[0]++; panic("boom") })
				return err
			})
		},
		"Rebuild, one":     func() { s.Rebuild(ctx, 1, func(int, *recovery.Iterator) error { panic("boom") }) },
		"Rebuild, several": func() { s.Rebuild(ctx, 3, func(int, *recovery.Iterator) error { panic("boom") }) },
	} {
		require.PanicsWithValue(t, "boom", f, name)
		noneActive(t, h)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := g; i < 100; i += 4 {
					if err := m.Put(key(i), val(i)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		within(t, 5*time.Second, name, wg.Wait)
		checkFilled(t, m, 100)
		require.NoError(t, h.Do(func(op tidemark.Op) error {
			b, err := s.Space().Get(op, ref)
			require.Equal(t, "content", string(b))
			return err
		}))
	}
	require.NoError(t, h.Close())

	for _, workers := range []int{1, 4} {
		o := &tidemark.Options{RecoveryWorkers: workers, Progress: func(tidemark.Progress) { panic("boom") }}
		require.PanicsWithValue(t, "boom", func() { tidemark.Open(dir, o) })
	}
	h = open(t, dir, nil) // the lock is free
	checkFilled(t, openMap(t, h, "m"), 100)
	require.NoError(t, h.Close())
}
