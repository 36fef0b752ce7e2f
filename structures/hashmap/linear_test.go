package hashmap_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

type call struct {
	kind     string
	key, val string
	old      string
}

type result struct {
	val string
	ok  bool
}

// register is the sequential map, one key at a time; "" is absent.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			k := op.Input.(call).key
			byKey[k] = append(byKey[k], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		s, c, r := state.(string), in.(call), out.(result)
		switch c.kind {
		case "get":
			return r.val == s && r.ok == (s != ""), s
		case "put":
			return true, c.val
		case "putIfAbsent":
			if s != "" {
				return !r.ok, s
			}
			return r.ok, c.val
		case "delete":
			return r.ok == (s != ""), ""
		case "swap":
			if s != c.old {
				return !r.ok, s
			}
			return r.ok, c.val
		case "append":
			return true, s + c.val
		}
		return false, s
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprint(in, " -> ", out) },
}

// Concurrent histories over few keys, in a table that grows meanwhile, with a
// clock that ticks every 100 µs, are those of a map.
func TestConcurrentHistoriesAreLinearizable(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for round := range rounds {
		h, err := tidemark.OpenMem(&tidemark.Options{EpochLength: 100 * time.Microsecond, MaxSize: 64 << 20})
		require.NoError(t, err)
		m, err := hashmap.Open(h, "m", nil)
		require.NoError(t, err)
		var clock atomic.Int64
		var mu sync.Mutex
		var history []porcupine.Operation
		var wg sync.WaitGroup
		for g := range 5 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				var mine []porcupine.Operation
				for i := range 40 {
					c := call{
						kind: []string{"get", "put", "putIfAbsent", "delete", "swap", "append"}[rnd.IntN(6)],
						key:  fmt.Sprint("k", rnd.IntN(3)), val: fmt.Sprintf("%d.%d;", g, i), old: fmt.Sprintf("%d.%d;", rnd.IntN(5), rnd.IntN(i+1)),
					}
					start := clock.Add(1)
					r := perform(t, m, c)
					mine = append(mine, porcupine.Operation{ClientId: g, Input: c, Call: start, Output: r, Return: clock.Add(1)})
					m.Put(fmt.Appendf(nil, "filler %d %d", g, i), nil) // makes the table grow
				}
				mu.Lock()
				defer mu.Unlock()
				history = append(history, mine...)
			})
		}
		wg.Wait()
		if res, _ := porcupine.CheckOperationsVerbose(register, history, 20*time.Second); res != porcupine.Ok {
			t.Fatalf("round %d: history is %v", round, res)
		}
		require.NoError(t, h.Close())
	}
}

func perform(t *testing.T, m *hashmap.Map, c call) (r result) {
	key, val := []byte(c.key), []byte(c.val)
	var err error
	switch c.kind {
	case "get":
		var v []byte
		v, err = m.Get(key)
		r.val, r.ok = string(v), err == nil
		if !r.ok && err == tidemark.ErrNotFound {
			err = nil
		}
	case "put":
		err = m.Put(key, val)
	case "putIfAbsent":
		r.ok, err = m.PutIfAbsent(key, val)
	case "delete":
		r.ok, err = m.Delete(key)
	case "swap":
		r.ok, err = m.CompareAndSwap(key, []byte(c.old), val)
	case "append":
		err = m.Update(key, func(old []byte, _ bool) ([]byte, bool) { return append(append([]byte{}, old...), val...), true })
	}
	if err != nil {
		t.Errorf("%v: %v", c, err)
	}
	return r
}

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
