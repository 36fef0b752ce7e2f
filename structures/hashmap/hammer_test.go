package hashmap_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// Transfers between two maps by operations that sometimes fail at the end keep
// the sum, whatever else writes to the same keys, and leave nothing pending.
func TestHammerOperationsOverTwoMaps(t *testing.T) {
	n := 40000
	if testing.Short() {
		n = 400
	}
	dir := t.TempDir()
	h, err := tidemark.Open(dir, &tidemark.Options{EpochLength: time.Millisecond})
	require.NoError(t, err)
	a := openTyped(t, h, "a", hashmap.Fixed[uint64](), hashmap.Fixed[int64]())
	b := openTyped(t, h, "b", hashmap.Fixed[uint64](), hashmap.Fixed[int64]())
	const keys = 20
	for k := range uint64(keys) {
		require.NoError(t, a.Put(k, 100))
		require.NoError(t, b.Put(k, 100))
	}
	boom := fmt.Errorf("boom")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(9, uint64(g)))
			for range n {
				from, to, fail := rnd.Uint64N(keys), rnd.Uint64N(keys), rnd.IntN(3) == 0
				err := h.Do(func(op tidemark.Op) error {
					add := func(m *hashmap.Typed[uint64, int64], k uint64, d int64) error {
						return m.In(op).Update(k, func(old int64, _ bool) (int64, bool) { return old + d, true })
					}
					if err := add(a, from, -1); err != nil {
						return err
					}
					if err := add(b, to, 1); err != nil {
						return err
					}
					if fail {
						return boom
					}
					return nil
				})
				if err != nil && !(fail && err == boom) {
					t.Errorf("transfer: %v", err)
					return
				}
			}
		})
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				seen := 0
				for range a.All(nil) {
					seen++
				}
				if seen != keys {
					t.Errorf("a loop saw %d of %d keys", seen, keys)
					return
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	reader.Wait()
	sum := func(a, b *hashmap.Typed[uint64, int64]) (s int64) {
		for _, v := range a.All(nil) {
			s += v
		}
		for _, v := range b.All(nil) {
			s += v
		}
		return s
	}
	require.EqualValues(t, 2*keys*100, sum(a, b))
	for k := range uint64(keys) { // nothing is left pending
		require.NoError(t, a.Update(k, func(v int64, ok bool) (int64, bool) { return v, ok }))
	}
	require.NoError(t, h.Close())
	h, err = tidemark.Open(dir, nil)
	require.NoError(t, err)
	defer h.Close()
	a = openTyped(t, h, "a", hashmap.Fixed[uint64](), hashmap.Fixed[int64]())
	b = openTyped(t, h, "b", hashmap.Fixed[uint64](), hashmap.Fixed[int64]())
	require.EqualValues(t, 2*keys*100, sum(a, b))
}

// An entry that is there all the time is seen exactly once, while the table grows
// from its smallest size.
func TestLoopsSeeEachEntryOnceWhileTheTableGrows(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	const old = 100
	for i := range old {
		require.NoError(t, m.Put(fmt.Appendf(nil, "old %d", i), nil))
	}
	i := 0
	seen := map[string]int{}
	for k := range m.Keys() {
		seen[string(k)]++
		for range 300 { // grows while the loop runs
			i++
			if err := m.Put(fmt.Appendf(nil, "new %d", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		if i > 60000 {
			break
		}
	}
	for i := range old {
		if n := seen[fmt.Sprint("old ", i)]; n != 1 && i < 60000/300 && len(seen) < 60000/300 {
			t.Errorf("old %d was seen %d times", i, n)
		}
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("%s was seen %d times", k, n)
		}
	}
}

// describe returns a value that says of which key it is, and that shows any byte
// of it that is wrong. note is part of it.
func describe(key, note string, size int) []byte {
	b := fmt.Appendf(nil, "%s|%s|%s|", key, note, strings.Repeat("=", size))
	return fmt.Appendf(b, "%08x", crc32.ChecksumIEEE(b))
}

// described returns the note of a value that describe made for the key.
func described(key, val []byte) (note string, err error) {
	n := len(val) - 8
	if n < 0 || string(val[n:]) != fmt.Sprintf("%08x", crc32.ChecksumIEEE(val[:n])) {
		return "", fmt.Errorf("the value of %q is torn: %.80q", key, val)
	}
	parts := bytes.SplitN(val, []byte("|"), 3)
	if string(parts[0]) != string(key) {
		return "", fmt.Errorf("key %q has a value of %q", key, parts[0])
	}
	return string(parts[1]), nil
}

// Everything at once, on two maps that grow from their smallest tables: operations
// that write the same note to a pair of entries or fail, methods on entries that
// such operations write too, loops, and goroutines that add entries of their own.
func TestHammerEverything(t *testing.T) {
	const (
		pairs    = 8
		shared   = 24
		growers  = 4
		hammers  = 8
		aborting = "of an operation that fails"
	)
	own, rounds := 25000, 5000
	if testing.Short() {
		own, rounds = 2500, 500
	}
	dir := t.TempDir()
	opt := &tidemark.Options{EpochLength: time.Millisecond}
	h, err := tidemark.Open(dir, opt)
	require.NoError(t, err)
	open := func() (a, b *hashmap.Map) {
		a, err := hashmap.Open(h, "a", nil)
		require.NoError(t, err)
		b, err = hashmap.Open(h, "b", nil)
		require.NoError(t, err)
		return a, b
	}
	a, b := open()
	always := make([]string, 100) // entries that nobody touches
	for i := range always {
		always[i] = fmt.Sprint("always ", i)
		require.NoError(t, a.Put([]byte(always[i]), describe(always[i], "", i)))
	}

	var work, loops sync.WaitGroup
	var stop atomic.Bool
	for g := range growers {
		work.Go(func() {
			for i := range own {
				k := fmt.Sprintf("own %d %d", g, i)
				if err := a.Put([]byte(k), describe(k, "", i%70)); err != nil {
					t.Error(err)
					return
				}
				if i%5 == 4 { // every fifth goes again
					if ok, err := a.Delete([]byte(k)); !ok || err != nil {
						t.Error(k, ok, err)
						return
					}
				}
			}
		})
	}
	for g := range hammers {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range rounds {
				note := fmt.Sprint(g, ".", i)
				fail := rnd.IntN(2) == 0
				if fail {
					note = aborting
				}
				p, s, s2 := fmt.Sprint("pair ", rnd.IntN(pairs)), fmt.Sprint("shared ", rnd.IntN(shared)), fmt.Sprint("shared ", rnd.IntN(shared))
				err := h.Do(func(op tidemark.Op) error {
					x, y := a.In(op), b.In(op)
					err := errors.Join(
						x.Put([]byte(p), describe(p, note, i%300)),
						x.Put([]byte(s), describe(s, note, i%40)))
					if err == nil && i%3 == 0 {
						_, err = x.Delete([]byte(s))
					}
					if err == nil {
						err = errors.Join(
							y.Put([]byte(p), describe(p, note, i%300)),
							y.Put([]byte(s2), describe(s2, note, i%40)))
					}
					if err != nil {
						return err
					}
					if fail {
						return errFail
					}
					return nil
				})
				if err != nil && (!fail || err != errFail) {
					t.Error(err)
					return
				}
				k := []byte(fmt.Sprint("shared ", rnd.IntN(shared)))
				val := describe(string(k), "method", i%200)
				switch m := []*hashmap.Map{a, b}[rnd.IntN(2)]; rnd.IntN(5) {
				case 0:
					err = m.Put(k, val)
				case 1:
					_, err = m.Delete(k)
				case 2:
					_, err = m.PutIfAbsent(k, val)
				case 3:
					var old []byte
					if old, err = m.Get(k); err == nil {
						_, err = m.CompareAndSwap(k, old, val)
					}
				case 4:
					err = m.Update(k, func(old []byte, ok bool) ([]byte, bool) {
						if ok {
							if _, err := described(k, old); err != nil {
								t.Error(err)
							}
						}
						return val, !ok
					})
				}
				if err != nil && err != tidemark.ErrNotFound {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, m := range []*hashmap.Map{a, b} {
		loops.Go(func() {
			for !stop.Load() && !t.Failed() {
				seen := map[string]bool{}
				for k, v := range m.All() {
					if seen[string(k)] {
						t.Errorf("%q is seen twice", k)
					}
					seen[string(k)] = true
					if _, err := described(k, v); err != nil {
						t.Error(err)
					}
				}
				for _, k := range always {
					if m == a && !seen[k] {
						t.Errorf("%q is not seen", k)
					}
				}
				if m.Len() < 0 {
					t.Error("Len is negative")
				}
			}
		})
	}
	work.Wait()
	stop.Store(true)
	loops.Wait()
	if t.Failed() {
		return
	}

	contents := func(m *hashmap.Map) map[string]string {
		all := map[string]string{}
		for k, v := range m.All() {
			note, err := described(k, v)
			if err != nil || note == aborting {
				t.Errorf("%q: %s %v", k, note, err)
			}
			all[string(k)] = string(v)
		}
		require.Equal(t, len(all), m.Len())
		return all
	}
	allA, allB := contents(a), contents(b)
	for g := range growers {
		for i := range own {
			k := fmt.Sprintf("own %d %d", g, i)
			if _, ok := allA[k]; ok != (i%5 != 4) {
				t.Errorf("%s is there: %v", k, ok)
			}
		}
	}
	for i := range pairs {
		p := fmt.Sprint("pair ", i)
		require.Equal(t, allA[p], allB[p], "both or neither")
	}
	// Nothing is left pending: one operation can write every entry without a wait.
	for m, all := range map[*hashmap.Map]map[string]string{a: allA, b: allB} {
		op := h.Begin()
		n := 0
		for k, v := range all {
			if n++; n > 500 && !strings.HasPrefix(k, "own") {
				continue
			}
			if ok, err := m.In(op).CompareAndSwap([]byte(k), []byte(v), []byte(v)); !ok && !errors.Is(err, tidemark.ErrOldSeesNew) {
				t.Errorf("%q: %v", k, err)
			}
		}
		op.Abort()
	}
	require.NoError(t, h.Close())
	h, err = tidemark.Open(dir, opt)
	require.NoError(t, err)
	defer h.Close()
	a, b = open()
	require.True(t, maps.Equal(allA, contents(a)), "a is the same when opened again")
	require.True(t, maps.Equal(allB, contents(b)), "b is the same when opened again")
}

// Two goroutines and one key: operations of one of them always fail, so that the
// other must find each time what it left, whatever the failing ones did and
// however far they had come.
func TestOneKeyAndOperationsThatFail(t *testing.T) {
	n := 4000
	if testing.Short() {
		n = 1000
	}
	h, err := tidemark.OpenMem(&tidemark.Options{EpochLength: 100 * time.Microsecond})
	require.NoError(t, err)
	defer h.Close()
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	k := []byte("key")
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			err := h.Do(func(op tidemark.Op) error {
				x := m.In(op)
				for step := range 1 + i%4 {
					var err error
					if (i>>2>>step)&1 == 0 {
						err = x.Put(k, bytes.Repeat([]byte("f"), i%200))
					} else {
						_, err = x.Delete(k)
					}
					if err != nil {
						return err
					}
				}
				return errFail
			})
			if err != errFail {
				t.Error(err)
				return
			}
		}
	})
	must := func(what string, ok bool, err error) {
		if !ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
	}
	for i := 0; i < n && !t.Failed(); i++ {
		v, w := fmt.Appendf(nil, "%d%s", i, strings.Repeat("v", i%100)), fmt.Appendf(nil, "w%d", i)
		ok, err := m.PutIfAbsent(k, v)
		must("PutIfAbsent", ok, err)
		ok, err = m.CompareAndSwap(k, v, w)
		must("CompareAndSwap", ok, err)
		must("Put", true, m.Put(k, v))
		must("Do", true, h.Do(func(op tidemark.Op) error {
			ok, err := m.In(op).CompareAndSwap(k, v, w)
			if err == nil {
				must("CompareAndSwap in Do", ok, err)
			}
			return err
		}))
		if i%2 == 0 {
			ok, err = m.CompareAndDelete(k, w)
			must("CompareAndDelete", ok, err)
		} else {
			ok, err = m.Delete(k)
			must("Delete", ok, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	require.Zero(t, m.Len())
}

// Entries that are there all the time are seen exactly once by each loop, while
// several goroutines make the table grow from its smallest size, and no entry is
// seen twice.
func TestLoopsWhileOthersMakeTheTableGrow(t *testing.T) {
	adds, repeat := 25000, 2
	if testing.Short() {
		adds, repeat = 4000, 1
	}
	for range repeat {
		h, err := tidemark.OpenMem(nil)
		require.NoError(t, err)
		m, err := hashmap.Open(h, "m", nil)
		require.NoError(t, err)
		const old = 40 // fit the smallest table
		for i := range old {
			require.NoError(t, m.Put(fmt.Appendf(nil, "old %d", i), nil))
		}
		var wg, loops sync.WaitGroup
		var done atomic.Bool
		for g := range 4 {
			wg.Go(func() {
				for i := range adds {
					if err := m.Put(fmt.Appendf(nil, "new %d %d", g, i), nil); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 2 {
			loops.Go(func() {
				for !done.Load() && !t.Failed() {
					seen := map[string]int{}
					olds := 0
					for k := range m.Keys() {
						if seen[string(k)]++; seen[string(k)] > 1 {
							t.Errorf("%s is seen twice", k)
						}
						if k[0] == 'o' {
							olds++
						}
					}
					if olds != old {
						t.Errorf("%d of %d entries are seen", olds, old)
					}
				}
			})
		}
		wg.Wait()
		done.Store(true)
		loops.Wait()
		require.Equal(t, old+4*adds, m.Len())
		require.NoError(t, h.Close())
	}
}

// A loop that deletes each entry it sees visits all of them; with a method, with
// one operation for every 100 of them, and with a second loop inside it. (See
// boltdb/bolt#620.)
func TestDeletingWhileIterating(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 3000
	}
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	var batch [][]byte
	deleteBatch := func() {
		require.NoError(t, h.Do(func(op tidemark.Op) error {
			for _, k := range batch {
				if ok, err := m.In(op).Delete(k); err != nil {
					return err
				} else if !ok {
					t.Errorf("%s is not there", k)
				}
			}
			return nil
		}))
		batch = batch[:0]
	}
	for name, each := range map[string]func(k []byte){
		"method": func(k []byte) {
			if ok, err := m.Delete(k); !ok || err != nil {
				t.Error(ok, err)
			}
		},
		"operation": func(k []byte) {
			if batch = append(batch, bytes.Clone(k)); len(batch) == 100 {
				deleteBatch()
			}
		},
		"second loop": func(k []byte) {
			inner := 0
			for range m.All() {
				if inner++; inner == 3 {
					break
				}
			}
			m.Delete(k)
		},
		"and others come": func(k []byte) {
			m.Delete(k)
			if err := m.Put(append([]byte("later "), k...), nil); err != nil {
				t.Error(err)
			}
			m.Delete(append([]byte("later "), k...))
		},
	} {
		for i := range n {
			if err := m.Put(fmt.Appendf(nil, "%d", i), describe(fmt.Sprint(i), "", 0)); err != nil {
				t.Fatal(err)
			}
		}
		visited := 0
		for k, v := range m.All() {
			visited++
			each(k)
			if _, err := described(k, v); err != nil {
				t.Error(name, err) // what a loop has handed out does not change under it
			}
		}
		deleteBatch()
		require.Equal(t, n, visited, name)
		require.Zero(t, m.Len(), name)
	}
}

// The callback of Update may use the map: its own entry, too, as long as it
// leaves that alone in the end.
func TestUpdateCallbackUsesTheMap(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	defer h.Close()
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	k, other := []byte("key"), []byte("other")
	calls := 0
	change := func(s store) func(old []byte, ok bool) ([]byte, bool) {
		return func(old []byte, ok bool) ([]byte, bool) {
			if calls++; calls == 1 { // changes what it was called for: it is called again
				require.NoError(t, s.Put(k, []byte("mine")))
				require.NoError(t, s.Update(other, func([]byte, bool) ([]byte, bool) { return []byte("inner"), true }))
			} else {
				require.Equal(t, "mine", string(old))
			}
			for range m.All() {
				m.Len()
			}
			return append(old, '+'), true
		}
	}
	require.NoError(t, m.Update(k, change(m)))
	require.Equal(t, 2, calls)
	require.NoError(t, h.Do(func(op tidemark.Op) error {
		calls = 0
		return m.In(op).Update(k, change(m.In(op)))
	}))
	require.Equal(t, 2, calls)
	v, err := m.Get(k)
	require.NoError(t, err)
	require.Equal(t, "mine+", string(v))

	// It may modify what it is given.
	calls = 0
	require.NoError(t, m.Update(k, func(old []byte, _ bool) ([]byte, bool) {
		if calls++; calls > 10 {
			return nil, false
		}
		clear(old)
		return old[:2], true
	}))
	v, err = m.Get(k)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0}, v)
	require.Equal(t, 1, calls)
}

// User code that panics leaves the map as it was, with nothing locked or pending.
func TestPanicsOfUserCode(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	k, big := []byte("key"), make([]byte, 100<<10)
	require.NoError(t, m.Put(k, []byte("before")))
	for name, f := range map[string]func(){
		"Update": func() { m.Update(k, func([]byte, bool) ([]byte, bool) { panic(boom) }) },
		"Do": func() {
			h.Do(func(op tidemark.Op) error {
				m.In(op).Put(k, big)
				m.In(op).Delete(k)
				m.In(op).PutIfAbsent([]byte("new"), nil)
				panic(boom)
			})
		},
		"Update in Do": func() {
			h.Do(func(op tidemark.Op) error {
				m.In(op).Clear()
				m.In(op).Put(k, nil)
				return m.In(op).Update(k, func([]byte, bool) ([]byte, bool) { panic(boom) })
			})
		},
		"All": func() {
			for range m.All() {
				panic(boom)
			}
		},
		"All in Do": func() {
			h.Do(func(op tidemark.Op) error {
				m.In(op).Put(k, []byte("after"))
				for range m.All() {
					panic(boom)
				}
				return nil
			})
		},
	} {
		for range 100 {
			func() {
				defer func() {
					if p := recover(); p != boom {
						t.Errorf("%s: recovered %v", name, p)
					}
				}()
				f()
			}()
		}
		done := make(chan error, 1)
		go func() {
			ok, err := m.CompareAndSwap(k, []byte("before"), []byte("before"))
			if err == nil && !ok {
				err = errors.New("the value has changed")
			}
			done <- err
		}()
		select {
		case err := <-done:
			require.NoError(t, err, name)
		case <-time.After(20 * time.Second):
			t.Fatal(name, ": the map hangs")
		}
		require.Equal(t, 1, m.Len(), name)
	}
	require.NoError(t, h.Close())
}

const boom = "a panic of user code"

// Clear within an operation is all or nothing, also while the heap is being closed.
func TestClearWhileTheHeapCloses(t *testing.T) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, m.Put(fmt.Appendf(nil, "%d", i), nil))
	}
	var left int
	err = h.Do(func(op tidemark.Op) error {
		closing := make(chan struct{})
		go func() { close(closing); h.Close() }()
		<-closing
		for { // until the heap refuses operations
			if _, err := m.Has(nil); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		err := m.In(op).Clear()
		left = m.Len()
		return err
	})
	if err == nil {
		require.Zero(t, left)
	} else {
		require.ErrorIs(t, err, tidemark.ErrClosed)
	}
	require.NoError(t, h.Close())
}
