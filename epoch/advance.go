package epoch

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist"
)

// run advances the clock every length until the system stops. A tick with
// nothing to make durable or to reclaim is skipped.
func (s *System) run(length time.Duration) {
	defer close(s.stopped)
	t := time.NewTicker(length)
	defer t.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			if e := s.Now(); s.Err() == nil && s.lastWrite()+3 > e {
				s.advanceTo(ctx, e+1)
			}
		}
	}
}

func (s *System) lastWrite() (e uint64) {
	s.each(func(sl *Slot) { e = max(e, sl.wrote.Load()) })
	return e
}

// Sync returns once every operation that ended before the call is durable.
// Concurrent callers share ticks. An operation that does not end holds it up:
// end ctx to stop waiting; whether the operations are durable is then unknown.
// A goroutine must not call it inside its own operation.
func (s *System) Sync(ctx context.Context) error {
	s.syncs.Add(1)
	if s.still {
		return s.Err()
	}
	return s.advanceTo(ctx, s.Now()+2)
}

// Tick advances the clock by one epoch.
func (s *System) Tick(ctx context.Context) error {
	if s.still {
		return s.Err()
	}
	return s.advanceTo(ctx, s.Now()+1)
}

// advanceTo has the clock reach target.
func (s *System) advanceTo(ctx context.Context, target uint64) error {
	for s.Now() < target {
		select {
		case s.token <- struct{}{}:
		default:
			select {
			case s.token <- struct{}{}:
			case <-ctx.Done():
				if s.Now() >= target {
					return nil
				}
				return waitEnded(ctx, s, target)
			}
		}
		var err error
		if s.Now() < target {
			err = s.advance(ctx)
		}
		<-s.token
		if err != nil {
			if s.Now() >= target {
				return nil
			}
			return err
		}
	}
	return nil
}

func waitEnded(ctx context.Context, s *System, target uint64) error {
	return fmt.Errorf("tidemark: %s: epoch %d is not yet durable, outcome unknown: %w", s.r.Path(), target-2, ctx.Err())
}

// Hold runs f while the clock does not tick.
func (s *System) Hold(f func() error) error {
	s.token <- struct{}{}
	defer func() { <-s.token }()
	return f()
}

// WaitDurable returns once epoch e counts. It does not hurry the clock.
func (s *System) WaitDurable(ctx context.Context, e uint64) error {
	for {
		s.waitMu.Lock()
		ticked := s.ticked
		s.waitMu.Unlock()
		if s.Durable() >= e {
			return nil
		}
		if err := s.Err(); err != nil {
			return err
		}
		if s.closed() {
			return persist.ErrClosed
		}
		select {
		case <-ticked:
		case <-ctx.Done():
			if s.Durable() >= e {
				return nil
			}
			return waitEnded(ctx, s, e+2)
		}
	}
}

// advance moves the clock by one, e to e+1. The caller holds the token.
//
// Crash points:
//
//	before the clock word is durable   B = e-2: nothing of e-1 counts, though any
//	                                   of it may be on media
//	after                              B = e-1: all of e-1 is on media, since it
//	                                   was ordered before the store (E1)
//
// Ordering: step 1 sees a slot idle, or in epoch e, after the operations of e-1
// in it have ended; so their lists and their stores are visible here.
func (s *System) advance(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	start := time.Now()
	e := s.Now()
	if e >= maxEpoch-1 {
		return s.fail(fmt.Errorf("the clock is exhausted at epoch %d", e))
	}
	var err error
	s.each(func(sl *Slot) {
		for n := 0; err == nil; n++ {
			if w := sl.word.Load(); w&active == 0 || wordEpoch(w) >= e {
				return
			}
			if ctx.Err() != nil {
				err = waitEnded(ctx, s, e+1)
				return
			}
			pause(n)
		}
	})
	if err != nil {
		return err
	}
	if !s.elide {
		s.each(func(sl *Slot) {
			l := &sl.lists[(e-1)&3]
			for _, x := range l.writeBack {
				s.h.WriteBack(x.off, x.n)
			}
			l.writeBack = l.writeBack[:0]
		})
		if !mutant.Is(mutant.ClockNotOrdered) {
			s.h.Order()
		}
	}
	s.h.Store(persist.ClockOff, persist.Seal(e+1))
	s.h.WriteBack(persist.ClockOff, 8)
	if err := s.h.Fence(); err != nil {
		return s.fail(err)
	}
	for {
		c := s.clock.Load()
		if s.clock.CompareAndSwap(c, e+1|c&closedBit) {
			break
		}
	}
	s.durable.Store(e - 1)
	s.r.Point("published")
	reuse := e - 1
	if mutant.Is(mutant.ReuseEarly) {
		reuse = e
	}
	s.each(func(sl *Slot) {
		if l := &sl.lists[reuse&3].retired; len(*l) > 0 {
			s.blocks.FreeBatch(*l)
			*l = (*l)[:0]
		}
		if l := &sl.lists[(e-2)&3].detached; len(*l) > 0 {
			s.blocks.FreeBatch(*l)
			*l = (*l)[:0]
		}
	})
	s.wake()
	s.ticks.Add(1)
	d := int64(time.Since(start))
	s.total.Add(d)
	s.slowest.Store(max(s.slowest.Load(), d))
	return nil
}

// wake has those who wait for an epoch look again.
func (s *System) wake() {
	s.waitMu.Lock()
	defer s.waitMu.Unlock()
	close(s.ticked)
	s.ticked = make(chan struct{})
}

// fail ends durability for good (a failed sync must never be retried: the
// kernel marks the pages clean).
func (s *System) fail(cause error) error {
	err := fmt.Errorf("%w: %s: %w", persist.ErrDurability, s.r.Path(), cause)
	s.failed.CompareAndSwap(nil, &failure{err})
	s.wake()
	return s.Err()
}
