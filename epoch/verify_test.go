package epoch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCellSequentially(t *testing.T) {
	s, _ := newSystem(t, Config{})
	var c Cell
	require.Zero(t, s.Load(&c))
	op := s.Begin()
	for _, step := range []struct {
		before, after uint64
		want          bool
	}{{0, 5, true}, {0, 6, false}, {5, 5, true}, {5, 1<<63 - 1, true}, {1<<63 - 1, 0, true}} {
		ok, err := op.CompareAndSwap(&c, step.before, step.after)
		require.NoError(t, err)
		require.Equal(t, step.want, ok)
		if ok {
			require.Equal(t, step.after, s.Load(&c))
		}
	}
	require.NoError(t, s.Tick(ctx))
	ok, err := op.CompareAndSwap(&c, 7, 8)
	require.NoError(t, err)
	require.False(t, ok, "another value is there, whatever the epoch")
	ok, err = op.CompareAndSwap(&c, 0, 8)
	require.ErrorIs(t, err, ErrOldSeesNew)
	require.False(t, ok)
	require.Zero(t, s.Load(&c))
	op.End()
	op = s.Begin()
	ok, err = op.CompareAndSwap(&c, 0, 8)
	require.NoError(t, err)
	require.True(t, ok)
	op.End()
}

// install leaves a swap as a goroutine does that is stopped in the middle of it.
func install(op Op, c *Cell, before, after uint64) (mark uint64, ok bool) {
	d := &op.s.dcss
	seq := (d.status.Load()>>2 + 1) & seqMask
	d.status.Store(seq<<2 | refused)
	d.epoch.Store(op.s.epoch)
	d.before.Store(before)
	d.after.Store(after)
	d.status.Store(seq<<2 | undecided)
	mark = cellMark | uint64(op.s.id)<<seqBits | seq
	return mark, c.v.CompareAndSwap(before, mark)
}

func TestStoppedSwapIsHelped(t *testing.T) {
	for _, passed := range []bool{false, true} {
		for _, how := range []string{"load", "swap", "many"} {
			t.Run(fmt.Sprint(how, " passed=", passed), func(t *testing.T) {
				s, _ := newSystem(t, Config{})
				var ops []Op // a slot of another chunk
				for range 2 * chunkSlots {
					ops = append(ops, s.Begin())
				}
				var c Cell
				c.Store(1)
				stopped := ops[len(ops)-1]
				mark, ok := install(stopped, &c, 1, 2)
				require.True(t, ok)
				want := uint64(2)
				if passed {
					require.NoError(t, s.Tick(ctx))
					want = 1
				}
				switch how {
				case "load":
					require.Equal(t, want, s.Load(&c))
				case "swap":
					op := s.Begin()
					ok, err := op.CompareAndSwap(&c, want, 3)
					require.NoError(t, err)
					require.True(t, ok)
					op.End()
					want = 3
				case "many":
					var wg sync.WaitGroup
					var wins atomic.Int32
					for range 8 {
						wg.Go(func() {
							op := s.Begin()
							defer op.End()
							ok, err := op.CompareAndSwap(&c, want, 3)
							if err != nil {
								t.Error(err)
							}
							if ok {
								wins.Add(1)
							}
						})
					}
					wg.Wait()
					require.Equal(t, int32(1), wins.Load())
					want = 3
				}
				// The one that was stopped goes on, and changes nothing any more.
				s.help(&c, mark)
				require.Equal(t, want, s.Load(&c))
				decided := stopped.s.dcss.status.Load() & 3
				require.Equal(t, map[bool]uint64{false: succeeded, true: refused}[passed], decided)
				for _, op := range ops {
					op.End()
				}
			})
		}
	}
}

// A helper that read a descriptor before it was used again decides nothing for the
// swap that came after, whatever step it was stopped at.
func TestLateHelperChangesNothing(t *testing.T) {
	s, _ := newSystem(t, Config{})
	var a, b Cell
	op := s.Begin()
	mark, ok := install(op, &a, 0, 1)
	require.True(t, ok)
	s.help(&a, mark)
	require.Equal(t, uint64(1), s.Load(&a))
	_, ok = install(op, &b, 0, 9) // the same descriptor, undecided
	require.True(t, ok)
	a.Store(7)
	s.help(&a, mark)
	require.Equal(t, uint64(undecided), op.s.dcss.status.Load()&3)
	require.Equal(t, uint64(7), s.Load(&a))
	require.Equal(t, uint64(9), s.Load(&b))
	op.End()
}

// Counters by compare-and-swap loops under a ticking clock: no update is lost, and
// none takes effect when its epoch has passed. For that the counter carries the
// epoch of its last update, which must never go back.
func TestCountersUnderATickingClock(t *testing.T) {
	s, _ := newSystem(t, Config{})
	const goroutines, cells = 8, 3
	updates := 1500
	if testing.Short() {
		updates = 300
	}
	var counters [cells]Cell
	var stop atomic.Bool
	var clock, wg sync.WaitGroup
	clock.Go(func() {
		for !stop.Load() {
			if err := s.Tick(ctx); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var refusals atomic.Int64
	for g := range goroutines {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			for range updates {
				c := &counters[rnd.IntN(cells)]
				for done := false; !done; {
					op := s.Begin()
					e := op.Epoch()
					v := s.Load(c)
					n, last := v&(1<<20-1), v>>20
					if last > e {
						op.End()
						continue
					}
					ok, err := op.CompareAndSwap(c, v, e<<20|(n+1))
					switch {
					case err != nil:
						refusals.Add(1)
					case ok:
						done = true
					}
					op.End()
				}
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	clock.Wait()
	total := uint64(0)
	for i := range counters {
		total += s.Load(&counters[i]) & (1<<20 - 1)
	}
	require.Equal(t, uint64(goroutines*updates), total)
	t.Logf("%d ticks, %d swaps refused", s.Stats().Ticks, refusals.Load())
}

// The epoch that a swap is labelled with is the clock's at the moment it takes
// effect: the clock, read before and after, encloses it.
func TestSwapsTakeEffectInTheirEpoch(t *testing.T) {
	s, _ := newSystem(t, Config{})
	var log [1 << 18]atomic.Uint64 // by value of the counter: the epoch of the update that made it
	var c Cell
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				op := s.Begin()
				v := s.Load(&c)
				if v+1 >= uint64(len(log)) {
					op.End()
					return
				}
				// No rule of the structure here: an older operation may well follow a
				// newer one's value, but then the clock must refuse it.
				if ok, err := op.CompareAndSwap(&c, v, v+1); ok && err == nil {
					log[v+1].Store(op.Epoch())
				}
				op.End()
			}
		})
	}
	for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); {
		if err := s.Tick(ctx); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	last := uint64(0)
	n := s.Load(&c)
	for v := uint64(1); v <= n; v++ {
		e := log[v].Load()
		if e < last {
			t.Fatalf("update %d was made in epoch %d, after one of epoch %d", v, e, last)
		}
		last = e
	}
	require.Positive(t, n)
	t.Logf("%d updates over %d ticks", n, s.Stats().Ticks)
}

// call is one operation on a register, with its times.
type call struct {
	start, end    int64
	load          bool
	before, after uint64 // of a swap; a load has its result in after
	ok            bool
}

// linearizable tries all orders that respect time.
func linearizable(calls []call, value uint64, done uint) bool {
	if done == 1<<len(calls)-1 {
		return true
	}
	first := int64(1) << 62 // nothing may come before a call that ended by then
	for i, c := range calls {
		if done>>i&1 == 0 {
			first = min(first, c.end)
		}
	}
	for i, c := range calls {
		if done>>i&1 != 0 || c.start > first {
			continue
		}
		next := value
		switch {
		case c.load && c.after != value, !c.load && c.ok != (c.before == value):
			continue
		case c.ok:
			next = c.after
		}
		if linearizable(calls, next, done|1<<i) {
			return true
		}
	}
	return false
}

func TestRegisterIsLinearizable(t *testing.T) {
	require.False(t, linearizable([]call{{start: 0, end: 1, before: 0, after: 5, ok: true}, {start: 2, end: 3, load: true, after: 0}}, 0, 0))
	require.True(t, linearizable([]call{{start: 0, end: 2, before: 0, after: 5, ok: true}, {start: 1, end: 3, load: true, after: 0}}, 0, 0))
	rounds := 600
	if testing.Short() {
		rounds = 100
	}
	s, _ := newSystem(t, Config{Length: 0})
	var stop atomic.Bool
	var clock sync.WaitGroup
	clock.Go(func() {
		for !stop.Load() {
			s.Tick(ctx)
		}
	})
	defer clock.Wait()
	defer stop.Store(true)
	var now atomic.Int64
	for round := range rounds {
		var c Cell
		var mu sync.Mutex
		var calls []call
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				for range 4 {
					x := call{load: rnd.IntN(3) == 0, before: rnd.Uint64N(3), after: rnd.Uint64N(3)}
					op := s.Begin()
					x.start = now.Add(1)
					var err error
					if x.load {
						x.after = s.Load(&c)
					} else {
						x.ok, err = op.CompareAndSwap(&c, x.before, x.after)
					}
					x.end = now.Add(1)
					op.End()
					if err != nil {
						continue // nothing has changed
					}
					mu.Lock()
					calls = append(calls, x)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.SortFunc(calls, func(a, b call) int { return int(a.start - b.start) })
		if !linearizable(calls, 0, 0) {
			t.Fatalf("round %d: no order explains %+v", round, calls)
		}
	}
}
