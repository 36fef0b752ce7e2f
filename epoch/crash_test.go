package epoch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// ledger is the simplest structure: operation i stores i+1 into word i, once.
type ledger struct {
	r      *persist.Region
	s      *System
	epochs []uint64 // of the operations that ended, by word
	acked  uint64   // last epoch known to be durable
}

const ledgerStart = 10

func openLedger(m *crashsim.Machine, strategy Strategy) (*ledger, error) {
	r, err := persist.NewSimulated(m)
	if err != nil {
		return nil, err
	}
	if err := r.Grow(m.Config().Size); err != nil {
		return nil, err
	}
	h := r.Handle()
	h.Store(persist.ClockOff, persist.Seal(ledgerStart))
	h.WriteBack(persist.ClockOff, 8)
	if err := h.Fence(); err != nil {
		return nil, err
	}
	f := &freed{at: map[persist.Off]uint64{}, byOp: map[persist.Off]bool{}}
	s := New(r, Config{Start: ledgerStart, Strategy: strategy, Blocks: f, NewLocal: func() any { return nil }})
	f.s = s
	return &ledger{r: r, s: s}, nil
}

func wordOff(i int) persist.Off { return persist.UnitSize + persist.Off(i)*persist.LineSize }

// write stores the next n words in one operation.
func (l *ledger) write(op Op, n int) error {
	slot, err := op.Slot()
	if err != nil {
		return err
	}
	for range n {
		i := len(l.epochs)
		l.r.Set(wordOff(i), uint64(i+1))
		slot.Touch(wordOff(i), 8)
		l.epochs = append(l.epochs, op.Epoch())
	}
	return nil
}

// check says what an image lacks of the epochs that count.
func (l *ledger) check(m *crashsim.Machine) error {
	clock, ok := persist.Unseal(binary.LittleEndian.Uint64(m.Memory()[persist.ClockOff:]))
	b := clock - 2
	if !ok || b < l.acked {
		return fmt.Errorf("the clock is %d, epoch %d was acknowledged", clock, l.acked)
	}
	for i, e := range l.epochs {
		if have := binary.LittleEndian.Uint64(m.Memory()[wordOff(i):]); e <= b && have != uint64(i+1) {
			return fmt.Errorf("word %d of epoch %d is %d, boundary %d", i, e, have, b)
		}
	}
	return nil
}

func (l *ledger) ack() { l.acked = l.s.Durable() }

// E1 for every strategy, at every crash point: what counts is there, and what Sync
// acknowledged counts.
func TestStrategiesAreDurable(t *testing.T) {
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
		for _, strategy := range []Strategy{PerEpoch, Buffered, Direct} {
			t.Run(fmt.Sprint(flavor, " ", strategy), func(t *testing.T) {
				var l *ledger
				size, every := 3, 1.0
				if strategy == Buffered {
					size, every = BufferedSpans+50, 0.01
				}
				crashsim.EveryCrash(t, crashsim.Options{
					Config:    crashsim.Config{Flavor: flavor, Size: 4 << 16},
					MaxImages: 40, Every: every, Depth: -1,
				}, func(m *crashsim.Machine) (err error) {
					m.Quiet(func() { l, err = openLedger(m, strategy) })
					if err != nil {
						return err
					}
					written := m.Counts()[crashsim.WriteBack]
					late := l.s.Begin()
					op := l.s.Begin()
					if err := l.write(op, size); err != nil {
						return err
					}
					op.End()
					if n := m.Counts()[crashsim.WriteBack] - written; (n > 0) != (strategy != PerEpoch) {
						return fmt.Errorf("%d write-backs by the operation", n)
					}
					if err := l.s.Tick(ctx); err != nil {
						return err
					}
					l.ack()
					if err := l.write(late, 2); err != nil {
						return err
					}
					op = l.s.Begin()
					if err := l.write(op, 2); err != nil {
						return err
					}
					late.End()
					op.End()
					if err := l.s.Sync(ctx); err != nil {
						return err
					}
					l.ack()
					if e := l.epochs[len(l.epochs)-1]; l.acked < e {
						return fmt.Errorf("after Sync epoch %d is durable, not %d", l.acked, e)
					}
					op = l.s.Begin()
					if err := l.write(op, 1); err != nil {
						return err
					}
					op.End()
					return l.s.Close(ctx)
				}, func(m *crashsim.Machine, _ crashsim.Crash) error { return l.check(m) })
			})
		}
	}
}

func TestTransientWritesNothingBack(t *testing.T) {
	m := crashsim.New(crashsim.Config{Size: 4 << 16})
	l, err := openLedger(m, Transient)
	require.NoError(t, err)
	before := m.Counts()
	op := l.s.Begin()
	require.NoError(t, l.write(op, 2*BufferedSpans))
	op.End()
	require.NoError(t, l.s.Sync(ctx))
	require.NoError(t, l.s.Close(ctx))
	for _, k := range []crashsim.Kind{crashsim.WriteBack, crashsim.Order, crashsim.Store, crashsim.Fence} {
		require.Equal(t, before[k], m.Counts()[k], k)
	}
}

// A fence that fails ends durability for good: those who wait are told, nothing of
// the epoch is published, and no later call has more luck. Media keep what was
// acknowledged before.
func TestFailedFenceIsFinal(t *testing.T) {
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
		for n := range 4 {
			t.Run(fmt.Sprint(flavor, " ", n), func(t *testing.T) {
				armed, fences := false, 0
				m := crashsim.New(crashsim.Config{Flavor: flavor, Size: 4 << 16, FenceError: func(int) error {
					if !armed {
						return nil
					}
					if fences++; fences == n+1 {
						return errDevice
					}
					return nil
				}})
				l, err := openLedger(m, PerEpoch)
				require.NoError(t, err)
				armed = true
				for range n {
					op := l.s.Begin()
					require.NoError(t, l.write(op, 2))
					op.End()
					require.NoError(t, l.s.Tick(ctx))
					l.ack()
				}
				op := l.s.Begin()
				require.NoError(t, l.write(op, 2))
				running, err := l.s.Begin().Slot()
				require.NoError(t, err)
				op.End()
				e, durable := l.s.Now(), l.s.Durable()
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						c, cancel := context.WithTimeout(ctx, 10*time.Second)
						defer cancel()
						if err := l.s.WaitDurable(c, e); !isDeviceGone(err) {
							t.Errorf("waiter: %v", err)
						}
					})
				}
				before := m.Counts()
				for _, do := range []func(context.Context) error{l.s.Tick, l.s.Sync, l.s.Tick} {
					require.True(t, isDeviceGone(do(ctx)))
				}
				wg.Wait()
				require.Equal(t, before[crashsim.Fence]+1, m.Counts()[crashsim.Fence], "a failed fence is not tried again")
				require.True(t, isDeviceGone(l.s.Err()))
				require.True(t, isDeviceGone(running.Err()))
				require.Equal(t, []uint64{e, durable}, []uint64{l.s.Now(), l.s.Durable()})
				running.word.Store(running.word.Load() & genMask)
				require.True(t, isDeviceGone(l.s.Close(ctx)))
				for choice, image := range m.Images(100, nil) {
					require.NoError(t, l.check(image), choice)
				}
			})
		}
	}
}

// isDeviceGone reports whether an error says that durability is lost, and why.
func isDeviceGone(err error) bool {
	return errors.Is(err, persist.ErrDurability) && errors.Is(err, errDevice)
}

var errDevice = errors.New("device is gone")
