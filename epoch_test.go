//go:build linux

package tidemark_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/recovery"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// contents returns what the structure "s" of a heap holds, sorted.
func contents(t *testing.T, h *tidemark.Heap) []string {
	t.Helper()
	s, err := h.OpenStructure("s", "k")
	require.NoError(t, err)
	var all []string
	require.NoError(t, s.Rebuild(ctx, 1, func(_ int, it *recovery.Iterator) error {
		all = append(all, string(it.Bytes()))
		return nil
	}))
	slices.Sort(all)
	return all
}

// A payload is created in one epoch and deleted some epochs later; then the heap
// is closed, synced and abandoned, or abandoned, some ticks later. What is
// abandoned is looked at as a crash leaves it: by its file's bytes.
func TestDeletionAtEveryDistance(t *testing.T) {
	for distance := range 5 {
		for ticks := range 5 {
			for _, end := range []string{"close", "sync", "crash"} {
				name := fmt.Sprintf("%d epochs, %d ticks, %s", distance, ticks, end)
				dir := filepath.Join(t.TempDir(), "h")
				h, err := tidemark.Open(dir, manual())
				require.NoError(t, err)
				s, err := h.OpenStructure("s", "k")
				require.NoError(t, err)
				require.NoError(t, h.Sync(ctx))
				var gone, stays payload.Ref
				do := func(f func(op tidemark.Op) error) { require.NoError(t, h.Do(f)) }
				do(func(op tidemark.Op) (err error) {
					gone, err = s.Space().New(op, 1, []byte("gone"))
					return err
				})
				do(func(op tidemark.Op) (err error) {
					stays, err = s.Space().New(op, 1, []byte("stays"))
					return err
				})
				created := h.Epoch()
				for range distance {
					require.NoError(t, h.Tick(ctx))
				}
				do(func(op tidemark.Op) (err error) {
					stays, err = s.Space().Update(op, stays, func(b []byte) { copy(b, "STAYS") })
					return err
				})
				do(func(op tidemark.Op) error { return s.Space().Delete(op, gone) })
				deleted := h.Epoch()
				for range ticks {
					require.NoError(t, h.Tick(ctx))
				}
				var want []string
				switch end {
				case "close":
					require.NoError(t, h.Close())
				case "sync":
					require.NoError(t, h.Sync(ctx))
					require.GreaterOrEqual(t, h.DurableEpoch(), deleted)
				}
				at := dir
				if end != "close" {
					at = copyHeap(t, readHeap(t, dir))
				}
				switch counts := h.DurableEpoch(); {
				case end != "crash" || counts >= deleted:
					want = []string{"STAYS"}
				case counts >= created:
					want = []string{"gone", "stays"}
				}
				for range 2 { // what was decided stays decided
					r := open(t, at, manual())
					require.Equal(t, end == "close", r.Metrics().Recovery.Clean, name)
					require.Equal(t, want, contents(t, r), name)
					require.NoError(t, r.Close())
					end = "close"
				}
				require.NoError(t, h.Close())
			}
		}
	}
}

func TestManualClockStandsStill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	h := open(t, dir, manual())
	m := openMap(t, h, "m")
	require.NoError(t, h.Sync(ctx))
	e := h.Epoch()
	require.NoError(t, m.Put(key(0), val(0)))
	time.Sleep(30 * time.Millisecond)
	require.Equal(t, e, h.Epoch())
	r := open(t, copyHeap(t, readHeap(t, dir)), nil)
	require.Zero(t, openMap(t, r, "m").Len())
	require.NoError(t, h.Sync(ctx))
	r = open(t, copyHeap(t, readHeap(t, dir)), nil)
	checkFilled(t, openMap(t, r, "m"), 1)
}

func TestEpochLengthChangesBetweenRuns(t *testing.T) {
	dir := t.TempDir()
	last := uint64(0)
	for i, d := range []time.Duration{100 * time.Microsecond, 50 * time.Millisecond, tidemark.Manual, time.Millisecond, 15 * time.Second, 0, time.Nanosecond} {
		h := open(t, dir, &tidemark.Options{EpochLength: d})
		require.Greater(t, h.Epoch(), last)
		m := openMap(t, h, "m")
		checkFilled(t, m, i)
		require.NoError(t, m.Put(key(i), val(i)))
		if d > 0 && d < time.Second {
			c, cancel := context.WithTimeout(ctx, 5*time.Second)
			require.NoError(t, h.WaitDurable(c, h.Epoch()))
			cancel()
		} else {
			require.NoError(t, h.Sync(ctx))
		}
		last = h.Epoch()
		require.NoError(t, h.Close())
	}
}

func init() {
	// churn puts, replaces and deletes with several goroutines until it is killed.
	// It prints a number after the Sync that made all keys up to it durable.
	children["churn"] = func(args []string) error {
		workers, _ := strconv.Atoi(args[1])
		runtime.GOMAXPROCS(workers)
		h, err := tidemark.Open(args[0], nil)
		if err != nil {
			return err
		}
		m, err := hashmap.Open(h, "m", nil)
		if err != nil {
			return err
		}
		var failed atomic.Pointer[error]
		for g := range workers {
			go func() {
				for i := 0; ; i++ {
					k := fmt.Appendf(nil, "churn%d-%d", g, i%50)
					var err error
					if i%5 == 4 {
						_, err = m.Delete(k)
					} else {
						err = m.Put(k, bytes.Repeat([]byte{byte(i)}, rand.IntN(1+64<<10>>rand.IntN(16))))
					}
					if err != nil {
						failed.Store(&err)
						return
					}
				}
			}()
		}
		next := 0
		for ok := true; ok; next++ {
			if ok, err = m.Has(key(next)); err != nil {
				return err
			}
		}
		w := bufio.NewWriter(os.Stdout)
		for i := next - 1; ; i++ {
			if err := m.Put(key(i), val(i)); err != nil {
				return err
			}
			if i%20 != 0 {
				continue
			}
			if err := h.Sync(ctx); err != nil {
				return err
			}
			if p := failed.Load(); p != nil {
				return *p
			}
			fmt.Fprintln(w, i)
			w.Flush()
		}
	}
}

func TestKilledAgainAndAgain(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	dir := filepath.Join(t.TempDir(), "h")
	for round := range rounds {
		c := startChild(t, "churn", dir, strconv.Itoa(1+round%3*3))
		synced := -1
		until := time.Now().Add(rand.N(80 * time.Millisecond))
		for line := c.line(t); ; line = c.line(t) {
			n, err := strconv.Atoi(line)
			require.NoError(t, err, line)
			if synced = n; time.Now().After(until) {
				break
			}
		}
		c.kill()
		if rest, _ := c.out.ReadString('\n'); strings.HasSuffix(rest, "\n") {
			synced, _ = strconv.Atoi(strings.TrimSpace(rest))
		}
		rep, err := tidemark.Verify(ctx, dir, nil)
		require.NoError(t, err)
		require.Empty(t, rep.Problems)

		o := &tidemark.Options{RecoveryWorkers: []int{1, 2, 3, 33}[round%4]}
		h, err := tidemark.Open(dir, o)
		require.NoError(t, err)
		require.False(t, h.Metrics().Recovery.Clean)
		m := openMap(t, h, "m")
		for i := range synced + 1 {
			v, err := m.Get(key(i))
			require.NoError(t, err, "%s of %d", key(i), synced)
			require.Equal(t, val(i), v)
		}
		for k, v := range m.All() {
			if strings.HasPrefix(string(k), "churn") && len(v) > 0 && bytes.Count(v, v[:1]) != len(v) {
				t.Fatalf("%s is torn", k)
			}
		}
		require.NoError(t, h.Close())
	}
}

// The number of workers makes no difference: not to what is recovered, not to
// what each of k iterators hands out once, not to the space that is left.
func TestRecoveryWithOtherNumbersOfWorkers(t *testing.T) {
	const max = 6 << 20
	dir := filepath.Join(t.TempDir(), "h")
	h := open(t, dir, &tidemark.Options{EpochLength: tidemark.Manual, MaxSize: max})
	m := openMap(t, h, "m")
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			n := []int{0, 1, 100}[g%3]
			for i := range n {
				if err := m.Put(key(g*1000+i), val(g*i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	entries := func(m *hashmap.Map) map[string]string {
		all := map[string]string{}
		for k, v := range m.All() {
			all[string(k)] = string(v)
		}
		return all
	}
	want := entries(m)
	require.NoError(t, h.Sync(ctx))
	crashed := readHeap(t, dir)
	fits := func(m *hashmap.Map) int {
		n, err := fill(m, 500000)
		require.ErrorIs(t, err, tidemark.ErrNoSpace)
		return n - 500000
	}
	before := fits(m)
	for _, k := range []int{1, 2, 3, 33} {
		h := open(t, copyHeap(t, crashed), &tidemark.Options{RecoveryWorkers: k, MaxSize: max})
		m, err := hashmap.Open(h, "m", &hashmap.Options{Workers: 34 - k})
		require.NoError(t, err)
		require.Equal(t, want, entries(m))
		require.NoError(t, m.Close())
		s, err := h.OpenStructure("m", hashmap.Kind)
		require.NoError(t, err)
		var mu sync.Mutex
		seen := map[payload.Ref]int{}
		require.NoError(t, s.Rebuild(ctx, k, func(_ int, it *recovery.Iterator) error {
			mu.Lock()
			defer mu.Unlock()
			seen[it.Ref()]++
			return nil
		}))
		require.Len(t, seen, len(want))
		for ref, n := range seen {
			require.Equal(t, 1, n, ref)
		}
		require.NoError(t, s.Close())
		m = openMap(t, h, "m")
		after := fits(m)
		require.InEpsilon(t, before, after, 0.01, "%d pages fit before, %d after", before, after)
		require.Subset(t, entries(m), want, "what is new overlaps nothing that was there")
		require.NoError(t, h.Close())
	}
}

func TestRecoveryIsCancelled(t *testing.T) {
	dir := filled(t, 20000)
	for _, after := range []int{0, 1, 5} {
		c, cancel := context.WithCancel(ctx)
		defer cancel()
		if after == 0 {
			cancel()
		}
		if after == 0 {
			before := tree(t, dir)
			_, err := tidemark.OpenContext(c, dir, nil)
			require.ErrorIs(t, err, context.Canceled)
			sameTree(t, before, dir)
			continue
		}
		h := open(t, dir, nil)
		s, err := h.OpenStructure("m", hashmap.Kind)
		require.NoError(t, err)
		var n atomic.Int64
		start := time.Now()
		err = s.Rebuild(c, 2, func(int, *recovery.Iterator) error {
			if n.Add(1) == int64(after) {
				cancel()
				start = time.Now()
			}
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, time.Since(start), 2*time.Second)
		require.Less(t, n.Load(), int64(20000))
		require.NoError(t, s.Close())
		_, err = hashmap.OpenContext(c, h, "m", nil)
		require.ErrorIs(t, err, context.Canceled)
		checkFilled(t, openMap(t, h, "m"), 20000)
		require.NoError(t, h.Close())
	}
}

func TestRecoveryTellsItsProgress(t *testing.T) {
	dir := filled(t, 2000)
	var mu sync.Mutex
	var last tidemark.Progress
	n := 0
	h := open(t, dir, &tidemark.Options{Progress: func(p tidemark.Progress) {
		mu.Lock()
		defer mu.Unlock()
		n++
		last = p
	}})
	require.Equal(t, "sweep", last.Phase)
	require.Positive(t, last.Done)
	require.Equal(t, last.Total, last.Done)
	swept := n
	openMap(t, h, "m")
	require.Greater(t, n, swept, "the end of the rebuild is told")
	require.Equal(t, "rebuild", last.Phase)
	require.Equal(t, "m", last.Structure)
	require.Equal(t, last.Total, last.Done)
}

// The caller's buffers are free as soon as a call returns.
func TestBuffersAreReused(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	var k, v, old []byte
	const n = 3000
	size := func(i int) int { return []int{0, 10, 300, 5000, 70 << 10}[min(i%60, 4*(i%7/6))] }
	put := func(do func(i int) error) {
		for i := range n {
			k = append(k[:0], key(i)...)
			v = append(append(v[:0], val(i)...), make([]byte, size(i))...)
			require.NoError(t, do(i))
			for _, b := range [][]byte{k, v, old} {
				for j := range b {
					b[j] = 0xee
				}
			}
		}
	}
	check := func() {
		require.Equal(t, n, m.Len())
		for i := range n {
			got, err := m.Get(key(i))
			require.NoError(t, err)
			require.True(t, string(got) == string(val(i))+string(make([]byte, size(i))), i)
		}
	}
	put(func(int) error { return m.Put(k, v) })
	check()
	put(func(i int) error {
		old = append(append(old[:0], val(i)...), make([]byte, size(i))...)
		ok, err := m.CompareAndSwap(k, old, v)
		require.True(t, ok)
		return err
	})
	check()
	require.NoError(t, m.Clear())
	require.NoError(t, h.Do(func(op tidemark.Op) error {
		put(func(int) error { return m.In(op).Put(k, v) })
		return nil
	}))
	check()
}

func TestEmptyKeysAndValues(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	for i, k := range [][]byte{nil, {}} {
		_, err := m.Get(k)
		require.ErrorIs(t, err, tidemark.ErrNotFound)
		for _, v := range [][]byte{nil, {}} {
			require.NoError(t, m.Put(k, v))
			require.Equal(t, 1, m.Len())
			got, err := m.Get([][]byte{{}, nil}[i])
			require.NoError(t, err)
			require.NotNil(t, got)
			require.Empty(t, got)
			ok, err := m.CompareAndSwap(k, nil, []byte("x"))
			require.NoError(t, err)
			require.False(t, ok, "nil is absent")
			ok, err = m.CompareAndSwap(k, []byte{}, nil)
			require.NoError(t, err)
			require.True(t, ok, "empty is not absent")
		}
		if i == 0 {
			ok, err := m.Delete(k)
			require.NoError(t, err)
			require.True(t, ok)
		}
	}
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	m = openMap(t, h, "m")
	n := 0
	for k, v := range m.All() {
		require.Empty(t, k)
		require.Empty(t, v)
		n++
	}
	require.Equal(t, 1, n)
}

func TestDeletingWhileIterating(t *testing.T) {
	h := open(t, t.TempDir(), nil)
	m := openMap(t, h, "m")
	const n = 5000
	for name, remove := range map[string]func(k []byte, left *[][]byte) error{
		"one by one": func(k []byte, _ *[][]byte) error { _, err := m.Delete(k); return err },
		"in batches": func(k []byte, left *[][]byte) error {
			if *left = append(*left, bytes.Clone(k)); len(*left) < 100 {
				return nil
			}
			defer func() { *left = nil }()
			return h.Do(func(op tidemark.Op) error {
				for _, k := range *left {
					if _, err := m.In(op).Delete(k); err != nil {
						return err
					}
				}
				return nil
			})
		},
		"inside another loop": func(k []byte, _ *[][]byte) error {
			for range m.Keys() {
				break
			}
			_, err := m.Delete(k)
			return err
		},
		"with inserts": func(k []byte, _ *[][]byte) error {
			if err := m.Put(append([]byte("new"), k...), nil); err != nil {
				return err
			}
			_, err := m.Delete(k)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, m.Clear())
			for i := range n {
				require.NoError(t, m.Put(key(i), val(i)))
			}
			seen := map[string]int{}
			var left [][]byte
			for k := range m.All() {
				if !bytes.HasPrefix(k, []byte("new")) {
					seen[string(k)]++
					require.NoError(t, remove(k, &left))
				}
			}
			require.Len(t, seen, n)
			for k, c := range seen {
				require.Equal(t, 1, c, k)
			}
			for i := range n {
				ok, err := m.Has(key(i))
				require.NoError(t, err)
				require.False(t, ok)
			}
		})
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	dir := filled(t, 1000)
	c, cancel := context.WithCancel(ctx)
	cancel()
	_, err := tidemark.Verify(c, dir, nil)
	require.True(t, errors.Is(err, context.Canceled), err)
	require.Greater(t, len(readHeap(t, dir)), persist.UnitSize)
}
