package epoch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark/persist"
)

var ctx = context.Background()

// freed is a Blocks that remembers what was given back, and when.
type freed struct {
	mu   sync.Mutex
	s    *System
	at   map[persist.Off]uint64 // clock at the time
	byOp map[persist.Off]bool   // given back by an operation, not by the clock
}

func (f *freed) Free(_ any, off persist.Off) {
	f.FreeBatch([]persist.Off{off})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byOp[off] = true
}

func (f *freed) FreeBatch(offs []persist.Off) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, off := range offs {
		if f.at[off] != 0 {
			panic(fmt.Sprintf("%#x freed twice", uint64(off)))
		}
		f.at[off] = f.s.Now()
	}
}

func (f *freed) when(off persist.Off) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at[off]
}

// newSystem returns a clock at epoch 10 on memory, which only Tick and Sync move
// unless the configuration says otherwise.
func newSystem(t testing.TB, cfg Config) (*System, *freed) {
	r, err := persist.NewMemory(4 << 16)
	require.NoError(t, err)
	require.NoError(t, r.Grow(4<<16))
	f := &freed{at: map[persist.Off]uint64{}, byOp: map[persist.Off]bool{}}
	cfg.Start, cfg.Blocks, cfg.NewLocal = 10, f, func() any { return new(int) }
	f.s = New(r, cfg)
	t.Cleanup(func() {
		c, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		f.s.Close(c)
	})
	return f.s, f
}

func TestStaleHandles(t *testing.T) {
	s, _ := newSystem(t, Config{})
	ends := map[string]func(Op){"End": Op.End, "Abort": Op.Abort}
	for first, end := range ends {
		for second, again := range ends {
			t.Run(first+" "+second, func(t *testing.T) {
				op := s.Begin()
				same := op
				require.Equal(t, uint64(10), op.Epoch())
				slot, err := op.Slot()
				require.NoError(t, err)
				end(same)
				for _, stale := range []Op{op, same} {
					again(stale)
					require.Zero(t, stale.Epoch())
					_, err = stale.Slot()
					require.ErrorIs(t, err, ErrOpEnded)
					_, err = stale.CompareAndSwap(new(Cell), 0, 1)
					require.ErrorIs(t, err, ErrOpEnded)
				}
				// The slot's next operation is not the one that ended.
				var next Op
				for next = s.Begin(); next.s != slot; next = s.Begin() {
				}
				again(op)
				require.Equal(t, uint64(10), next.Epoch())
				for i := range s.first {
					s.first[i].word.Store(s.first[i].word.Load() & genMask)
				}
			})
		}
	}
	var zero Op
	zero.End()
	zero.Abort()
	require.Zero(t, zero.Epoch())
	_, err := zero.Slot()
	require.ErrorIs(t, err, ErrOpEnded)
}

// participant records what it is told.
type participant struct{ told []string }

func (p *participant) Commit(_ Op, a, b uint64) { p.told = append(p.told, fmt.Sprint("commit ", a, b)) }
func (p *participant) Abort(_ Op, a, b uint64)  { p.told = append(p.told, fmt.Sprint("abort ", a, b)) }

func TestAbortUndoesInReverse(t *testing.T) {
	s, f := newSystem(t, Config{})
	r := s.r
	copy(r.Bytes(0x10000, 24), "the first contents......")
	r.Set(0x10100, 1)
	var p participant
	op := s.Begin()
	slot, err := op.Slot()
	require.NoError(t, err)
	slot.Save(0x10000, 10)
	copy(r.Bytes(0x10000, 10), "overwritten")
	slot.Save(0x10004, 20)
	copy(r.Bytes(0x10004, 20), "overwritten once more")
	for i := range uint64(3) {
		slot.Changed(0x10100, r.Load(0x10100))
		r.Set(0x10100, 2+i)
	}
	slot.Created(0x10200, 77)
	slot.Retired(0x10300, false)
	slot.Retired(0x10320, true)
	slot.Freed(0x10400)
	for i := range uint64(2 * manyJoins) {
		require.False(t, slot.Joined(i))
		slot.Join(&p, i, i, 0)
		require.True(t, slot.Joined(i))
	}
	op.Abort()
	require.Equal(t, "the first contents......", string(r.Bytes(0x10000, 24)))
	require.Equal(t, uint64(1), r.Load(0x10100))
	require.Equal(t, uint64(77), r.Load(0x10200))
	require.Equal(t, map[persist.Off]bool{0x10200: true}, f.byOp)
	require.Len(t, p.told, 2*manyJoins)
	require.Equal(t, fmt.Sprint("abort ", 2*manyJoins-1, 0), p.told[0])
	for range 5 {
		require.NoError(t, s.Tick(ctx))
	}
	require.Len(t, f.at, 1, "what an aborted operation retired stays")

	// An abort leaves alone what operations before it retired in the same epoch.
	for _, off := range []persist.Off{0x10500, 0x10600} {
		op = s.Begin()
		slot, err = op.Slot()
		require.NoError(t, err)
		slot.Retired(off, false)
		slot.Retired(off+32, true)
		if off == 0x10500 {
			op.End()
		} else {
			op.Abort()
		}
	}
	for range 5 {
		require.NoError(t, s.Tick(ctx))
	}
	require.NotZero(t, f.at[0x10500])
	require.NotZero(t, f.at[0x10520])
	require.Len(t, f.at, 3)
}

func TestFreedIsGivenBackAtTheEnd(t *testing.T) {
	s, f := newSystem(t, Config{})
	op := s.Begin()
	slot, err := op.Slot()
	require.NoError(t, err)
	slot.Freed(0x10400)
	require.Zero(t, f.when(0x10400))
	op.End()
	require.True(t, f.byOp[0x10400])
}

// E3: what was retired in r waits for r+2, and for r+3 where readers take no lock,
// also if the operation ended late.
func TestRetiredBlocksWait(t *testing.T) {
	for _, late := range []bool{false, true} {
		s, f := newSystem(t, Config{})
		op := s.Begin()
		slot, err := op.Slot()
		require.NoError(t, err)
		if late {
			require.NoError(t, s.Tick(ctx))
		}
		r := op.Epoch()
		slot.Retired(0x10100, false)
		slot.Retired(0x10200, true)
		op.End()
		for s.Now() < r+6 {
			if s.Now() < r+2 {
				require.Zero(t, f.when(0x10100))
			}
			if s.Now() < r+3 {
				require.Zero(t, f.when(0x10200))
			}
			require.NoError(t, s.Tick(ctx))
		}
		require.Equal(t, r+2, f.when(0x10100))
		require.Equal(t, r+3, f.when(0x10200))
	}
}

func TestSlotsGrowAndAreUsedAgain(t *testing.T) {
	s, _ := newSystem(t, Config{})
	for range 3 {
		var ops []Op
		ids := map[int]bool{}
		for i := range 500 {
			op := s.Begin()
			slot, err := op.Slot()
			require.NoError(t, err)
			require.False(t, ids[slot.ID()], "slot %d is used twice", slot.ID())
			ids[slot.ID()] = true
			if i%3 == 0 {
				slot.Retired(persist.Off(0x10000+i*32), false)
			}
			ops = append(ops, op)
		}
		require.Equal(t, 500, s.Stats().Active)
		for i, op := range ops {
			if i%2 == 0 {
				op.End()
			} else {
				op.Abort()
			}
		}
		require.Zero(t, s.Stats().Active)
		require.Len(t, s.chunks(), 8)
		for range 4 {
			require.NoError(t, s.Tick(ctx))
		}
		f := s.blocks.(*freed)
		require.Len(t, f.at, (500/3+2)/2)
		clear(f.at)
	}
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			for range 20 {
				op := s.Begin()
				time.Sleep(time.Microsecond)
				op.End()
			}
		})
	}
	for range 50 {
		require.NoError(t, s.Tick(ctx))
	}
	wg.Wait()
}

// An operation holds the clock one epoch ahead of it, not more, and a tick that is
// given up has changed nothing.
func TestOperationsHoldTheClock(t *testing.T) {
	s, _ := newSystem(t, Config{})
	op := s.Begin()
	require.NoError(t, s.Tick(ctx))
	c, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	for name, wait := range map[string]func() error{
		"Tick":        func() error { return s.Tick(c) },
		"Sync":        func() error { return s.Sync(c) },
		"WaitDurable": func() error { return s.WaitDurable(c, 10) },
	} {
		err := wait()
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.ErrorContains(t, err, "unknown", name)
	}
	require.Equal(t, uint64(11), s.Now())
	require.Equal(t, Stats{Epoch: 11, Durable: 9, Active: 1, OldestActive: 10}, still(s.Stats()))
	op.End()
	require.NoError(t, s.Sync(ctx))
	require.GreaterOrEqual(t, s.Durable(), uint64(10))
}

// still leaves out what depends on the time things take.
func still(st Stats) Stats {
	st.Ticks, st.Syncs, st.SlowestTick, st.TotalTicks = 0, 0, 0, 0
	return st
}

// A call that has what it wants says so, even if its context has ended as well.
func TestSuccessIsPreferred(t *testing.T) {
	s, _ := newSystem(t, Config{})
	c, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, s.WaitDurable(c, s.Durable()))
	require.NoError(t, s.advanceTo(c, s.Now()))
	for range 200 {
		c, cancel := context.WithCancel(ctx)
		e := s.Now()
		done := make(chan error)
		go func() { done <- s.WaitDurable(c, e) }()
		require.NoError(t, s.Sync(ctx))
		cancel()
		require.NoError(t, <-done, "epoch %d is durable, for %d is", e, s.Durable())
	}
}

func TestSyncsShareTicks(t *testing.T) {
	s, _ := newSystem(t, Config{})
	require.NoError(t, s.Hold(func() error {
		before := s.Stats().Ticks
		var wg sync.WaitGroup
		var durable atomic.Int64
		for range 64 {
			wg.Go(func() {
				op := s.Begin()
				e := op.Epoch()
				op.End()
				if err := s.Sync(ctx); err != nil || s.Durable() < e {
					t.Errorf("epoch %d: durable is %d, %v", e, s.Durable(), err)
				}
				durable.Add(1)
			})
		}
		for s.Stats().Syncs < 64 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		<-s.token
		wg.Wait()
		s.token <- struct{}{}
		require.Equal(t, int64(64), durable.Load())
		require.Equal(t, uint64(2), s.Stats().Ticks-before)
		return nil
	}))
}

func TestIdleClockStandsStill(t *testing.T) {
	s, _ := newSystem(t, Config{Length: time.Millisecond})
	time.Sleep(30 * time.Millisecond)
	require.Equal(t, uint64(10), s.Now(), "nothing was written")
	op := s.Begin()
	time.Sleep(10 * time.Millisecond)
	op.End() // a read
	require.Equal(t, uint64(10), s.Now())
	op = s.Begin()
	slot, err := op.Slot()
	require.NoError(t, err)
	slot.Touch(0x10000, 8)
	op.End()
	require.NoError(t, s.WaitDurable(ctx, 10))
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, uint64(13), s.Now(), "three ticks: two to be durable, one to give blocks back")
	require.NoError(t, s.Tick(ctx))
	require.Equal(t, uint64(14), s.Now())

	for _, length := range []time.Duration{0, -1} {
		s, _ := newSystem(t, Config{Length: length})
		op := s.Begin()
		slot, err := op.Slot()
		require.NoError(t, err)
		slot.Touch(0x10000, 8)
		op.End()
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, uint64(10), s.Now())
	}
	for _, cfg := range []Config{{ReadOnly: true, Length: time.Millisecond}, {Strategy: Transient, Length: time.Millisecond}} {
		s, _ := newSystem(t, cfg)
		op := s.Begin()
		slot, err := op.Slot()
		require.NoError(t, err)
		slot.Touch(0x10000, 8)
		op.End()
		require.NoError(t, s.Sync(ctx))
		require.NoError(t, s.Tick(ctx))
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, uint64(10), s.Now())
	}
}

func TestClose(t *testing.T) {
	s, _ := newSystem(t, Config{Length: time.Millisecond})
	op := s.Begin()
	c, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Close(c), context.DeadlineExceeded)
	dead := s.Begin()
	_, err := dead.Slot()
	require.ErrorIs(t, err, persist.ErrClosed)
	_, err = dead.CompareAndSwap(new(Cell), 0, 1)
	require.ErrorIs(t, err, persist.ErrClosed)
	require.Zero(t, dead.Epoch())
	dead.End()
	dead.Abort()
	require.Equal(t, uint64(10), op.Epoch(), "what runs goes on")
	waits := make(chan error)
	go func() { waits <- s.WaitDurable(ctx, 1<<40) }()
	closed := make(chan error)
	go func() { closed <- s.Close(ctx) }()
	select {
	case err := <-closed:
		t.Fatalf("closed while an operation runs: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	op.End()
	require.NoError(t, <-closed)
	require.ErrorIs(t, <-waits, persist.ErrClosed)
	require.GreaterOrEqual(t, s.Durable(), uint64(10))
	require.NoError(t, s.Close(ctx))
	require.ErrorIs(t, s.WaitDurable(ctx, 1<<40), persist.ErrClosed)
}

func TestClockIsExhausted(t *testing.T) {
	s, _ := newSystem(t, Config{})
	s.clock.Store(maxEpoch - 2)
	require.NoError(t, s.Tick(ctx))
	require.ErrorIs(t, s.Tick(ctx), persist.ErrDurability)
	require.Equal(t, uint64(maxEpoch-1), s.Now())
}

// An operation begun while the clock moves is either seen by the advancer or runs
// in the new epoch (E2).
func TestBeginRacesWithTheClock(t *testing.T) {
	s, _ := newSystem(t, Config{})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				op := s.Begin()
				if e, now := op.Epoch(), s.Now(); now > e+1 {
					t.Errorf("operation of epoch %d in epoch %d", e, now)
					stop.Store(true)
				}
				op.End()
			}
		})
	}
	for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
		require.NoError(t, s.Tick(ctx))
	}
	stop.Store(true)
	wg.Wait()
}

func TestFlushSkipsSlotsInUse(t *testing.T) {
	s, _ := newSystem(t, Config{})
	op := s.Begin()
	slot, err := op.Slot()
	require.NoError(t, err)
	*slot.Local().(*int) = 5
	sum := 0
	look := func(local any) bool { sum += *local.(*int); return *local.(*int) > 0 }
	require.False(t, s.Flush(look))
	require.Zero(t, sum)
	op.End()
	require.True(t, s.Flush(look))
	require.Equal(t, 5, sum)
	require.Zero(t, op.Epoch(), "a handle from before is still stale")
}

func TestStrategyNames(t *testing.T) {
	require.Equal(t, "[PerEpoch Buffered Direct Transient Strategy(9)]", fmt.Sprint([]Strategy{PerEpoch, Buffered, Direct, Transient, 9}))
}
