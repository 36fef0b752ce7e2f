package hashmap_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// call is a call of a method for one key, or an operation of several.
type call struct {
	kind     string
	key, val string
	old      string

	steps []call // of a "do"
	fail  bool   // which does not end well
}

type result struct {
	val   string
	ok    bool
	steps []result
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
		ok, s := in.(call).follows(state.(string), out.(result))
		return ok, s
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprint(in, " -> ", out) },
}

// follows reports whether the result is right in state s, and the state afterwards.
func (c call) follows(s string, r result) (bool, string) {
	switch c.kind {
	case "get":
		return r.val == s && r.ok == (s != ""), s
	case "has":
		return r.ok == (s != ""), s
	case "put":
		return true, c.val
	case "putIfAbsent":
		if s != "" {
			return !r.ok, s
		}
		return r.ok, c.val
	case "delete":
		return r.ok == (s != ""), ""
	case "swap": // with an old of "": if absent
		if s != c.old {
			return !r.ok, s
		}
		return r.ok, c.val
	case "remove": // if it is old
		if s != c.old {
			return !r.ok, s
		}
		return r.ok, ""
	case "append":
		return true, s + c.val
	case "do":
		now := s
		for i, step := range c.steps {
			ok, next := step.follows(now, r.steps[i])
			if !ok {
				return false, s
			}
			now = next
		}
		if c.fail {
			return true, s
		}
		return true, now
	}
	return false, s
}

// store is what a map has in common with one within an operation.
type store interface {
	Get(key []byte) ([]byte, error)
	Has(key []byte) (bool, error)
	Put(key, val []byte) error
	PutIfAbsent(key, val []byte) (bool, error)
	Delete(key []byte) (bool, error)
	CompareAndSwap(key, old, val []byte) (bool, error)
	CompareAndDelete(key, old []byte) (bool, error)
	Update(key []byte, change func(old []byte, ok bool) ([]byte, bool)) error
}

func (c call) run(s store) (r result, err error) {
	key, val := []byte(c.key), []byte(c.val)
	var old []byte // nil: absent
	if c.old != "" {
		old = []byte(c.old)
	}
	switch c.kind {
	case "get":
		var v []byte
		v, err = s.Get(key)
		r.val, r.ok = string(v), err == nil
		if err == tidemark.ErrNotFound {
			err = nil
		}
	case "has":
		r.ok, err = s.Has(key)
	case "put":
		err = s.Put(key, val)
	case "putIfAbsent":
		r.ok, err = s.PutIfAbsent(key, val)
	case "delete":
		r.ok, err = s.Delete(key)
	case "swap":
		r.ok, err = s.CompareAndSwap(key, old, val)
	case "remove":
		r.ok, err = s.CompareAndDelete(key, old)
	case "append":
		err = s.Update(key, func(old []byte, _ bool) ([]byte, bool) { return append(old, val...), true })
	}
	return r, err
}

var errFail = errors.New("fail")

// runDo runs the steps of a "do" as one operation. How they went the last time
// counts.
func (c call) runDo(h *tidemark.Heap, m *hashmap.Map) (r result, err error) {
	err = h.Do(func(op tidemark.Op) error {
		r.steps = r.steps[:0]
		for _, step := range c.steps {
			one, err := step.run(m.In(op))
			if err != nil {
				return err
			}
			r.steps = append(r.steps, one)
			runtime.Gosched()
		}
		if c.fail {
			return errFail
		}
		return nil
	})
	if c.fail && err == errFail {
		err = nil
	}
	return r, err
}

// checkHistories runs rounds of few calls by 5 goroutines on few keys, in a small
// table that grows meanwhile, with a clock that ticks every 100 µs, and then gets
// every key. What all calls returned must be what a map would have.
func checkHistories(t *testing.T, rounds, calls int, next func(rnd *rand.Rand, g, i int) call) {
	const keys = 3
	for round := range rounds {
		h, err := tidemark.OpenMem(&tidemark.Options{EpochLength: 100 * time.Microsecond, MaxSize: 64 << 20})
		require.NoError(t, err)
		m, err := hashmap.Open(h, "m", nil)
		require.NoError(t, err)
		var clock atomic.Int64
		var mu sync.Mutex
		var history []porcupine.Operation
		record := func(g int, c call) porcupine.Operation {
			start := clock.Add(1)
			var r result
			var err error
			if c.kind == "do" {
				r, err = c.runDo(h, m)
			} else {
				r, err = c.run(m)
			}
			if err != nil {
				t.Errorf("%v: %v", c, err)
			}
			return porcupine.Operation{ClientId: g, Input: c, Call: start, Output: r, Return: clock.Add(1)}
		}
		var wg sync.WaitGroup
		for g := range 5 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				var mine []porcupine.Operation
				for i := range calls {
					c := next(rnd, g, i)
					c.key = fmt.Sprint("k", rnd.IntN(keys))
					for j := range c.steps {
						c.steps[j].key = c.key
					}
					mine = append(mine, record(g, c))
					filler := fmt.Appendf(nil, "filler %d %d", g, i) // makes the table grow
					m.Put(filler, nil)
					if i%3 == 0 {
						m.Delete(filler)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				history = append(history, mine...)
			})
		}
		wg.Wait()
		for k := range keys {
			history = append(history, record(0, call{kind: "get", key: fmt.Sprint("k", k)}))
		}
		if res, _ := porcupine.CheckOperationsVerbose(register, history, 20*time.Second); res != porcupine.Ok {
			t.Fatalf("round %d: history is %v", round, res)
		}
		require.NoError(t, h.Close())
	}
}

func randomCall(rnd *rand.Rand, g, i int, kinds ...string) call {
	return call{kind: kinds[rnd.IntN(len(kinds))], val: fmt.Sprintf("%d.%d;", g, i), old: fmt.Sprintf("%d.%d;", rnd.IntN(5), rnd.IntN(i+1))}
}

// Concurrent histories of methods are those of a map.
func TestConcurrentHistoriesAreLinearizable(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	checkHistories(t, rounds, 40, func(rnd *rand.Rand, g, i int) call {
		return randomCall(rnd, g, i, "get", "has", "put", "putIfAbsent", "delete", "swap", "remove", "append")
	})
}

// Operations of several steps happen at once or, if they fail, not at all: to all
// that changes an entry, and to a reader once they have ended. (Others may read
// what they have done before that, so no reader runs meanwhile.) An operation has
// an entry to itself from its first change of it.
func TestHistoriesWithOperationsThatFail(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	writes := []string{"put", "putIfAbsent", "delete", "swap", "remove", "append"}
	checkHistories(t, rounds, 30, func(rnd *rand.Rand, g, i int) call {
		if rnd.IntN(2) == 0 {
			return randomCall(rnd, g, i, writes...)
		}
		c := call{kind: "do", fail: rnd.IntN(2) == 0}
		c.steps = append(c.steps, randomCall(rnd, g, i, "put"))
		for range rnd.IntN(4) {
			step := randomCall(rnd, g, i, append(writes, "get", "has")...)
			step.val += "x"
			if rnd.IntN(2) == 0 {
				step.old = c.steps[0].val
			}
			c.steps = append(c.steps, step)
		}
		return c
	})
}
