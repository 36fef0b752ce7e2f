package epoch

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark/persist"
)

// Strategy says who writes payloads back, and when (Montage, section 5.2).
type Strategy uint8

const (
	// PerEpoch: the goroutine that advances the clock writes back all that an
	// epoch recorded. Best in Montage's measurements, and here.
	PerEpoch Strategy = iota
	// Buffered: a slot that holds BufferedSpans ranges has half of them written
	// back by the operation that filled it.
	Buffered
	// Direct: each operation writes back its payloads as it ends.
	Direct
	// Transient: nothing is made durable, ever, and the clock stands still. It
	// measures what persistence costs. A heap must be empty to be opened so, and
	// is empty when it is opened again.
	Transient
)

func (s Strategy) String() string {
	if int(s) < 4 {
		return [...]string{"PerEpoch", "Buffered", "Direct", "Transient"}[s]
	}
	return fmt.Sprintf("Strategy(%d)", uint8(s))
}

// Blocks is what the clock needs of whoever manages blocks.
type Blocks interface {
	// Free gives back one block from an operation, with its slot's local value.
	Free(local any, off persist.Off)
	// FreeBatch gives back blocks from the advancer.
	FreeBatch(offs []persist.Off)
}

// Config configures a System.
type Config struct {
	Start    uint64        // the epoch to begin in: the clock word on media
	Length   time.Duration // of an epoch; not positive: only Tick and Sync advance
	Strategy Strategy
	ReadOnly bool // operations may read; the clock stands still
	Blocks   Blocks
	NewLocal func() any // per-slot value for the layers above
}

// System is the clock and the slots of one region.
type System struct {
	clock atomic.Uint64 // current epoch, | closedBit
	_     [persist.LineSize - 8]byte

	r        *persist.Region
	blocks   Blocks
	newLocal func() any
	strategy Strategy
	hint     uint // shift of a stack hint: to a slot's number, or to 0 where runs must be repeatable
	elide    bool // no write-back list is needed
	still    bool // the clock never moves

	_     [persist.LineSize]byte
	first [chunkSlots]Slot
	more  atomic.Pointer[[]*[chunkSlots]Slot]
	grow  sync.Mutex

	token   chan struct{} // held by whoever advances
	h       persist.Handle
	durable atomic.Uint64 // last epoch that counts
	failed  atomic.Pointer[failure]
	ticked  chan struct{} // closed and replaced at each tick; guarded by waitMu
	waitMu  sync.Mutex

	stop    chan struct{}
	stopped chan struct{}

	ticks, syncs   atomic.Uint64
	slowest, total atomic.Int64 // nanoseconds of advances
}

type failure struct{ err error }

const (
	chunkSlots = 64
	// MaxSlots is how many operations can run at once; further ones wait.
	MaxSlots = 126 * chunkSlots
)

// New returns a running system. Close it.
func New(r *persist.Region, cfg Config) *System {
	s := &System{
		r: r, blocks: cfg.Blocks, newLocal: cfg.NewLocal, strategy: cfg.Strategy, h: r.Handle(),
		still: cfg.ReadOnly || cfg.Strategy == Transient,
		token: make(chan struct{}, 1), ticked: make(chan struct{}),
	}
	if s.hint = 64 - 6; r.Simulated() {
		s.hint = 64
	}
	s.elide = s.still || s.h.Elides()
	s.clock.Store(cfg.Start)
	s.durable.Store(cfg.Start - 2)
	s.initChunk(&s.first, 0)
	if cfg.Length > 0 && !s.still {
		s.stop, s.stopped = make(chan struct{}), make(chan struct{})
		go s.run(cfg.Length)
	}
	return s
}

func (s *System) initChunk(c *[chunkSlots]Slot, base int) {
	for i := range c {
		c[i].sys, c[i].id, c[i].h = s, base+i, s.r.Handle()
	}
}

// Begin starts an operation in the current epoch. It never blocks, except while
// MaxSlots operations run. On a closed system the operation is dead: whatever
// uses it gets ErrClosed.
//
// Ordering: the compare and swap publishes the epoch before the clock is read
// again; the advancer stores the clock before it looks at the slots. So either
// the advancer sees the operation, or the operation sees the new clock (E2).
func (s *System) Begin() Op {
	i := persist.StackHint() >> s.hint
	for n := range uint64(chunkSlots) {
		sl := &s.first[(i+n)%chunkSlots]
		if w := sl.word.Load(); w&active == 0 {
			if op, ok := s.claim(sl, w); ok {
				return op
			}
		}
	}
	return s.beginSlow()
}

func (s *System) claim(sl *Slot, w uint64) (Op, bool) {
	e := s.clock.Load()
	gen := (w + genOne) & genMask
	if e&closedBit != 0 {
		return Op{s: sl}, true
	}
	w2 := gen | e<<1 | active
	if !sl.word.CompareAndSwap(w, w2) {
		return Op{}, false
	}
	for {
		now := s.clock.Load()
		if now == e {
			sl.epoch = e
			return Op{sl, w2}, true
		}
		if now&closedBit != 0 {
			sl.word.Store(gen)
			return Op{s: sl}, true
		}
		e, w2 = now, gen|now<<1|active
		sl.word.Store(w2)
	}
}

// beginSlow looks through further chunks, making one where all are in use.
func (s *System) beginSlow() Op {
	for wait := 0; ; wait++ {
		for _, c := range s.chunks()[1:] {
			for i := range c {
				if w := c[i].word.Load(); w&active == 0 {
					if op, ok := s.claim(&c[i], w); ok {
						return op
					}
				}
			}
		}
		if !s.addChunk() {
			pause(wait)
		}
		for i := range s.first {
			if w := s.first[i].word.Load(); w&active == 0 {
				if op, ok := s.claim(&s.first[i], w); ok {
					return op
				}
			}
		}
	}
}

func (s *System) addChunk() bool {
	s.grow.Lock()
	defer s.grow.Unlock()
	old := s.chunks()
	if len(old)*chunkSlots >= MaxSlots {
		return false
	}
	c := new([chunkSlots]Slot)
	s.initChunk(c, len(old)*chunkSlots)
	all := append(append([]*[chunkSlots]Slot(nil), old[1:]...), c)
	s.more.Store(&all)
	return true
}

// chunks returns all chunks, the first included.
func (s *System) chunks() []*[chunkSlots]Slot {
	all := []*[chunkSlots]Slot{&s.first}
	if more := s.more.Load(); more != nil {
		all = append(all, *more...)
	}
	return all
}

// each calls f for every slot.
func (s *System) each(f func(*Slot)) {
	for i := range s.first {
		f(&s.first[i])
	}
	if more := s.more.Load(); more != nil {
		for _, c := range *more {
			for i := range c {
				f(&c[i])
			}
		}
	}
}

// pause waits a little, longer each time: waiters must not keep the processor
// from whom they wait for.
func pause(n int) {
	if n < 20 {
		runtime.Gosched()
		return
	}
	time.Sleep(min(time.Duration(n)*time.Microsecond, time.Millisecond))
}

// Now returns the current epoch.
func (s *System) Now() uint64 { return s.clock.Load() &^ closedBit }

// Durable returns the last epoch that counts: a crash now keeps every operation
// of epochs up to it.
func (s *System) Durable() uint64 { return s.durable.Load() }

// Err returns the error that ended durability, or nil. It matches ErrDurability.
func (s *System) Err() error {
	if f := s.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

func (s *System) closed() bool { return s.clock.Load()&closedBit != 0 }

// Flush has f see every slot's local value, skipping slots in use. It reports
// whether f did anything.
func (s *System) Flush(f func(local any) bool) (any bool) {
	s.each(func(sl *Slot) {
		w := sl.word.Load()
		if w&active != 0 || !sl.word.CompareAndSwap(w, (w+genOne)&genMask|maxEpoch<<1|active) {
			return
		}
		if sl.local != nil && f(sl.local) {
			any = true
		}
		sl.word.Store((w + genOne) & genMask)
	})
	return any
}

// Close refuses new operations, waits for those that run, and stops the clock
// after two last ticks, so that everything is durable. If ctx ends first the
// system stays as it is, refusing operations, and Close may be called again.
func (s *System) Close(ctx context.Context) error {
	for {
		c := s.clock.Load()
		if c&closedBit != 0 || s.clock.CompareAndSwap(c, c|closedBit) {
			break
		}
	}
	for n := 0; s.busy(); n++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("tidemark: %s: operations are still running: %w", s.r.Path(), err)
		}
		pause(n)
	}
	if s.stop != nil {
		select {
		case <-s.stop:
		default:
			close(s.stop)
		}
		<-s.stopped
	}
	defer s.wake()
	if s.still {
		return nil
	}
	return s.advanceTo(ctx, s.Now()+2)
}

func (s *System) busy() (any bool) {
	s.each(func(sl *Slot) { any = any || sl.word.Load()&active != 0 })
	return any
}

// Stats describes the clock.
type Stats struct {
	Epoch        uint64        `json:"epoch"`
	Durable      uint64        `json:"durable"`     // last epoch that counts
	Active       int           `json:"active"`      // running operations
	OldestActive uint64        `json:"oldest"`      // epoch of the oldest of them, 0 for none: it holds the clock
	Ticks        uint64        `json:"ticks"`       // since Open
	Syncs        uint64        `json:"syncs"`       // calls of Sync
	SlowestTick  time.Duration `json:"slowestTick"` // waiting for operations included
	TotalTicks   time.Duration `json:"totalTicks"`
}

// Stats returns the present state.
func (s *System) Stats() Stats {
	st := Stats{
		Epoch: s.Now(), Durable: s.Durable(), Ticks: s.ticks.Load(), Syncs: s.syncs.Load(),
		SlowestTick: time.Duration(s.slowest.Load()), TotalTicks: time.Duration(s.total.Load()),
	}
	s.each(func(sl *Slot) {
		w := sl.word.Load()
		if e := wordEpoch(w); w&active != 0 && e != maxEpoch {
			st.Active++
			if st.OldestActive == 0 || e < st.OldestActive {
				st.OldestActive = e
			}
		}
	})
	return st
}
