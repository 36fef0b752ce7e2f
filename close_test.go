//go:build linux

package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/recovery"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// methods calls every method of a heap and of a map that can fail.
func methods(h *tidemark.Heap, m *hashmap.Map) map[string]func() error {
	k, v := []byte("key"), []byte("val")
	inDo := func(f func(x hashmap.Tx) error) func() error {
		return func() error { return h.Do(func(op tidemark.Op) error { return f(m.In(op)) }) }
	}
	onOp := func(f func(x hashmap.Tx) error) func() error {
		return func() error {
			op := h.Begin()
			defer op.Abort()
			return f(m.In(op))
		}
	}
	keep := func(old []byte, ok bool) ([]byte, bool) { return v, true }
	return map[string]func() error{
		"Heap.Do":            func() error { return h.Do(func(tidemark.Op) error { return nil }) },
		"Heap.Begin":         func() error { op := h.Begin(); defer op.End(); _, err := op.Slot(); return err },
		"Heap.Sync":          func() error { return h.Sync(ctx) },
		"Heap.Tick":          func() error { return h.Tick(ctx) },
		"Heap.Reclaim":       func() error { return h.Reclaim(ctx) },
		"Heap.WaitDurable":   func() error { return h.WaitDurable(ctx, h.Epoch()+100) },
		"Heap.Info":          func() error { _, err := h.Info(); return err },
		"Heap.OpenStructure": func() error { _, err := h.OpenStructure("s", "k"); return err },
		"Heap.Drop":          func() error { return h.Drop(ctx, "s") },
		"hashmap.Open":       func() error { _, err := hashmap.Open(h, "other", nil); return err },
		"Map.Get":            func() error { _, err := m.Get(k); return err },
		"Map.AppendGet":      func() error { _, err := m.AppendGet(nil, k); return err },
		"Map.Has":            func() error { _, err := m.Has(k); return err },
		"Map.Put":            func() error { return m.Put(k, v) },
		"Map.Put large":      func() error { return m.Put(k, make([]byte, 100<<10)) },
		"Map.PutIfAbsent":    func() error { _, err := m.PutIfAbsent(k, v); return err },
		"Map.Delete":         func() error { _, err := m.Delete(k); return err },
		"Map.CompareAndSwap": func() error { _, err := m.CompareAndSwap(k, v, v); return err },
		"Map.CompareAndDelete": func() error {
			_, err := m.CompareAndDelete(k, v)
			return err
		},
		"Map.Update":      func() error { return m.Update(k, keep) },
		"Map.Clear":       func() error { return m.Clear() },
		"Tx.Get":          onOp(func(x hashmap.Tx) error { _, err := x.Get(k); return err }),
		"Tx.Has":          onOp(func(x hashmap.Tx) error { _, err := x.Has(k); return err }),
		"Tx.Put":          onOp(func(x hashmap.Tx) error { return x.Put(k, v) }),
		"Tx.Put large":    onOp(func(x hashmap.Tx) error { return x.Put(k, make([]byte, 100<<10)) }),
		"Tx.PutIfAbsent":  onOp(func(x hashmap.Tx) error { _, err := x.PutIfAbsent(k, v); return err }),
		"Tx.Delete":       onOp(func(x hashmap.Tx) error { _, err := x.Delete(k); return err }),
		"Tx.Swap":         onOp(func(x hashmap.Tx) error { _, err := x.CompareAndSwap(k, v, v); return err }),
		"Tx.CompareAndDe": onOp(func(x hashmap.Tx) error { _, err := x.CompareAndDelete(k, v); return err }),
		"Tx.Update":       onOp(func(x hashmap.Tx) error { return x.Update(k, keep) }),
		"Tx.Clear":        onOp(func(x hashmap.Tx) error { return x.Clear() }),
		"Do of Put":       inDo(func(x hashmap.Tx) error { return x.Put(k, v) }),
	}
}

// harmless calls what returns no error.
func harmless(h *tidemark.Heap, m *hashmap.Map) {
	h.Metrics()
	h.Structures()
	h.Epoch()
	h.DurableEpoch()
	h.Err()
	h.Options()
	h.Path()
	h.ReadOnly()
	m.Len()
	m.Name()
	for range m.All() {
	}
	for range m.Keys() {
	}
}

func TestUseAfterClose(t *testing.T) {
	// Whatever the slots have been used for before: nothing, or something.
	for _, used := range []bool{false, true} {
		for name, o := range map[string]*tidemark.Options{"": nil, "manual": manual(), "transient": {Strategy: tidemark.Transient}} {
			t.Run(fmt.Sprint(used, name), func(t *testing.T) {
				h := open(t, filepath.Join(t.TempDir(), "h"), o)
				m := openMap(t, h, "m")
				require.NoError(t, m.Put([]byte("key"), []byte("val")))
				typ, err := payload.TypeOf[[4]uint64]("four")
				require.NoError(t, err)
				s, err := h.OpenStructure("typed", "k", typ.Descriptor())
				require.NoError(t, err)
				var ref payload.Ref
				require.NoError(t, h.Do(func(op tidemark.Op) (err error) {
					ref, err = typ.New(op, s.Space(), [4]uint64{1, 2, 3, 4})
					return err
				}))
				if used {
					all := make([]tidemark.Op, 200)
					for i := range all {
						all[i] = h.Begin()
					}
					for _, op := range all {
						op.End()
					}
				}
				ended := h.Begin()
				ended.End()
				require.NoError(t, h.Close())
				for name, f := range methods(h, m) {
					require.ErrorIs(t, f(), tidemark.ErrClosed, name)
				}
				for range m.All() {
					t.Error("an entry after Close")
				}
				harmless(h, m)
				require.ErrorIs(t, s.Rebuild(ctx, 1, func(int, *recovery.Iterator) error { return nil }), tidemark.ErrClosed)
				for _, op := range []tidemark.Op{h.Begin(), ended, {}} {
					want := tidemark.ErrOpEnded
					if op != ended && op != (tidemark.Op{}) {
						want = tidemark.ErrClosed
					}
					for name, err := range onPayload(typ, s.Space(), op, ref) {
						require.ErrorIs(t, err, want, name)
					}
				}
				require.NoError(t, s.Close())
				require.NoError(t, m.Close())
				require.NoError(t, h.Close())
			})
		}
	}
}

// onPayload calls everything that takes a Ref and returns an error.
func onPayload(typ *payload.Type[[4]uint64], s *payload.Space, op tidemark.Op, ref payload.Ref) map[string]error {
	errs := map[string]error{}
	_, errs["Space.Get"] = s.Get(op, ref)
	_, errs["Space.Update"] = s.Update(op, ref, func([]byte) {})
	errs["Space.Delete"] = s.Delete(op, ref)
	errs["Space.Retire"] = s.Retire(op, ref)
	errs["Space.Reclaim"] = s.Reclaim(op, ref)
	_, errs["Type.Get"] = typ.Get(op, s, ref)
	_, errs["Type.Update"] = typ.Update(op, s, ref, func(*[4]uint64) {})
	return errs
}

// A slice that a map has returned is the caller's own.
func TestSlicesOutliveTheHeap(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	require.NoError(t, m.Put(key(7), val(7)))
	v, err := m.Get(key(7))
	require.NoError(t, err)
	var k, w []byte
	for k, w = range m.All() {
	}
	require.NoError(t, m.Put(key(7), val(8)))
	require.NoError(t, h.Close())
	runtime.GC()
	require.Equal(t, val(7), v)
	require.Equal(t, key(7), k)
	require.Equal(t, val(7), w)
	_ = append(v, "more"...)
}

func TestCloseWaitsForOperations(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	op := h.Begin()
	require.NoError(t, m.In(op).Put(key(0), val(0)))
	closed := make(chan error, 3)
	go func() { closed <- h.Close() }()
	require.Eventually(t, func() bool { return errors.Is(h.Do(func(tidemark.Op) error { return nil }), tidemark.ErrClosed) }, 5*time.Second, time.Millisecond)
	for range 2 {
		c, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		within(t, 5*time.Second, "CloseContext", func() { require.ErrorIs(t, h.CloseContext(c), context.DeadlineExceeded) })
		cancel()
	}
	go func() { closed <- h.Close() }()
	require.NoError(t, m.In(op).Put(key(1), val(1)))
	require.Empty(t, closed)
	op.End()
	require.NoError(t, <-closed)
	require.NoError(t, <-closed)
	h = open(t, dir, nil)
	checkFilled(t, openMap(t, h, "m"), 2)
}

func TestCloseCanBeTriedAgain(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	op := h.Begin()
	require.NoError(t, m.In(op).Put(key(0), val(0)))
	done, cancel := context.WithCancel(ctx)
	cancel()
	for range 3 {
		err := h.CloseContext(done)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, dir)
	}
	_, err := tidemark.Open(dir, nil)
	require.ErrorIs(t, err, tidemark.ErrLocked)
	require.ErrorIs(t, m.Put(key(1), val(1)), tidemark.ErrClosed)
	op.End()
	require.NoError(t, h.CloseContext(ctx))
	require.NoError(t, h.CloseContext(done), "closed already")
	h = open(t, dir, nil)
	require.True(t, h.Metrics().Recovery.Clean)
	checkFilled(t, openMap(t, h, "m"), 1)
}

// A rebuild keeps the heap mapped; the wait for it is bounded like any other.
func TestCloseDuringARebuild(t *testing.T) {
	dir := filled(t, 50)
	h := open(t, dir, nil)
	s, err := h.OpenStructure("m", hashmap.Kind)
	require.NoError(t, err)
	started, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	rebuilt := make(chan error, 1)
	go func() {
		rebuilt <- s.Rebuild(ctx, 2, func(int, *recovery.Iterator) error {
			once.Do(func() { close(started) })
			<-goOn
			return nil
		})
	}()
	<-started
	c, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	within(t, 5*time.Second, "CloseContext", func() { require.ErrorIs(t, h.CloseContext(c), context.DeadlineExceeded) })
	close(goOn)
	require.NoError(t, <-rebuilt)
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	checkFilled(t, openMap(t, h, "m"), 50)
}

func TestCloseWhileASyncWaits(t *testing.T) {
	h := open(t, t.TempDir(), manual())
	m := openMap(t, h, "m")
	op := h.Begin()
	require.NoError(t, m.In(op).Put(key(0), val(0)))
	require.NoError(t, h.Tick(ctx))
	synced, closed := make(chan error, 1), make(chan error, 1)
	go func() { synced <- h.Sync(ctx) }()
	bounded, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err := h.Sync(bounded)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "outcome unknown")
	go func() { closed <- h.Close() }()
	time.Sleep(10 * time.Millisecond)
	require.Empty(t, closed)
	op.End()
	within(t, 5*time.Second, "Close", func() {
		require.NoError(t, <-closed)
		if err := <-synced; err != nil {
			require.ErrorIs(t, err, tidemark.ErrClosed)
		}
	})
}

func TestWaitDurableEndsWithTheHeap(t *testing.T) {
	for name, f := range map[string]func(t *testing.T) *tidemark.Heap{
		"clock":  func(t *testing.T) *tidemark.Heap { return open(t, t.TempDir(), nil) },
		"manual": func(t *testing.T) *tidemark.Heap { return open(t, t.TempDir(), manual()) },
		"read-only": func(t *testing.T) *tidemark.Heap {
			h, err := tidemark.OpenReadOnly(filled(t, 1), nil)
			require.NoError(t, err)
			return h
		},
		"transient": func(t *testing.T) *tidemark.Heap {
			return open(t, t.TempDir(), &tidemark.Options{Strategy: tidemark.Transient})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := f(t)
			waited := make(chan error, 1)
			go func() { waited <- h.WaitDurable(ctx, h.Epoch()+1000) }()
			time.Sleep(5 * time.Millisecond)
			require.NoError(t, h.Close())
			within(t, 5*time.Second, "WaitDurable", func() { require.ErrorIs(t, <-waited, tidemark.ErrClosed) })
		})
	}
}

// Everything that races with Close returns a result or ErrClosed, and what
// returned nil before is there afterwards.
func TestMethodsRaceWithClose(t *testing.T) {
	rounds := 80
	if testing.Short() {
		rounds = 20
	}
	dir := filepath.Join(t.TempDir(), "h")
	for round := range rounds {
		h, err := tidemark.Open(dir, &tidemark.Options{EpochLength: time.Millisecond})
		require.NoError(t, err)
		require.True(t, h.Metrics().Recovery.Clean)
		m, err := hashmap.Open(h, "m", nil)
		require.NoError(t, err)
		require.NoError(t, m.Clear())
		all := methods(h, m)
		delete(all, "Heap.WaitDurable")
		delete(all, "Map.Clear")
		delete(all, "Tx.Clear")
		var acked atomic.Int64
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if g < 4 {
						// A growing table, with nothing else in the way.
						if err := m.Put(fmt.Appendf(nil, "g%d-%d", g, i), val(i)); err != nil {
							if !errors.Is(err, tidemark.ErrClosed) {
								t.Errorf("Put: %v", err)
							}
							return
						}
						acked.Add(1)
						continue
					}
					for name, f := range all {
						switch err := f(); {
						case errors.Is(err, tidemark.ErrClosed):
							return
						case err == nil, errors.Is(err, tidemark.ErrNotFound), errors.Is(err, tidemark.ErrLocked),
							errors.Is(err, tidemark.ErrConflict), errors.Is(err, tidemark.ErrOldSeesNew):
						default:
							t.Errorf("%s: %v", name, err)
							return
						}
					}
					harmless(h, m)
				}
			})
		}
		time.Sleep(rand.N(8 * time.Millisecond))
		within(t, 10*time.Second, "Close", func() {
			var closers sync.WaitGroup
			for range 2 {
				closers.Go(func() {
					if err := h.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
			}
			closers.Wait()
			wg.Wait()
		})
		if t.Failed() {
			return
		}
		if round%10 == 9 {
			h = open(t, dir, nil)
			m = openMap(t, h, "m")
			n := int64(0)
			for k := range m.Keys() {
				if k[0] == 'g' {
					n++
				}
			}
			require.Equal(t, acked.Load(), n)
			require.NoError(t, h.Close())
		}
	}
}

// resources counts goroutines, descriptors and mappings of heap files.
func resources(t *testing.T) (goroutines, fds, maps int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return runtime.NumGoroutine(), len(entries), strings.Count(string(b), "/heap\n")
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	dir := filled(t, 10)
	damaged := readHeap(t, dir)
	damaged[0x2000] ^= 1
	bad := copyHeap(t, damaged)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	cycle := func() {
		h, err := tidemark.Open(dir, nil)
		require.NoError(t, err)
		m, err := hashmap.Open(h, "m", nil)
		require.NoError(t, err)
		require.NoError(t, m.Put(key(1), val(1)))
		_, err = tidemark.Open(dir, nil)
		require.ErrorIs(t, err, tidemark.ErrLocked)
		require.NoError(t, h.Close())
		_, err = tidemark.Open(bad, nil)
		require.ErrorIs(t, err, tidemark.ErrCorrupt)
		_, err = tidemark.OpenContext(cancelled, dir, nil)
		require.ErrorIs(t, err, context.Canceled)
		_, err = tidemark.Open(dir, &tidemark.Options{Strategy: tidemark.Transient})
		require.ErrorIs(t, err, tidemark.ErrUnsupported)
		_, err = tidemark.Verify(ctx, dir, nil)
		require.NoError(t, err)
		h, err = tidemark.OpenMem(&tidemark.Options{MaxSize: 1 << 20})
		require.NoError(t, err)
		require.NoError(t, h.Close())
	}
	cycle()
	type count struct{ goroutines, fds, maps int }
	var start count
	start.goroutines, start.fds, start.maps = resources(t)
	for range 50 {
		cycle()
	}
	var now count
	require.Eventually(t, func() bool {
		now.goroutines, now.fds, now.maps = resources(t)
		return now.goroutines <= start.goroutines+1 && now.fds <= start.fds && now.maps <= start.maps
	}, 5*time.Second, 10*time.Millisecond, "%+v", &now)
}

// A map that is closed twice does not close what somebody else has opened since.
func TestMapClosedTwice(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	require.NoError(t, m.Close())
	n := openMap(t, h, "m")
	require.NoError(t, m.Close())
	_, err := hashmap.Open(h, "m", nil)
	require.ErrorIs(t, err, tidemark.ErrLocked)
	require.NoError(t, n.Close())
	openMap(t, h, "m")
}

// The table of methods above is complete.
func TestAllMethodsAreTriedAfterClose(t *testing.T) {
	all := methods(nil, nil)
	for _, typ := range []reflect.Type{reflect.TypeFor[*tidemark.Heap](), reflect.TypeFor[*hashmap.Map]()} {
		fails := reflect.TypeFor[error]()
		for i := range typ.NumMethod() {
			f := typ.Method(i)
			n := f.Type.NumOut()
			switch name := typ.Elem().Name() + "." + f.Name; {
			case n == 0 || f.Type.Out(n-1) != fails || strings.Contains(name, "Close") || f.Name == "Err" || f.Name == "Inspect":
			default:
				require.Contains(t, all, name)
			}
		}
	}
}
