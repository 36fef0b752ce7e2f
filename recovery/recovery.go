package recovery

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
)

// Policy says what to do about damaged media.
type Policy uint8

const (
	// Strict: damage is an error.
	Strict Policy = iota
	// Salvage: damage is reported and skipped. A damaged block is neither handed
	// out nor used again.
	Salvage
)

func (p Policy) String() string {
	if p == Salvage {
		return "Salvage"
	}
	return "Strict"
}

// Progress is told to a callback while a recovery runs, at most every 100 ms
// and once at the end of each phase.
type Progress struct {
	Phase     string // "sweep", or "rebuild"
	Structure string // in the rebuild phase
	Done      uint64 // bytes of superblocks
	Total     uint64
}

// Options are common to the steps of a recovery.
type Options struct {
	Workers  int // goroutines; at least 1
	Policy   Policy
	Progress func(Progress)
	Damage   func(*persist.CorruptError) // told of each damage under Salvage
}

// FirstEpoch is the clock of a new heap.
const FirstEpoch = 3

// Result is what a heap's recovery found.
type Result struct {
	Clean    bool          // the heap had been closed
	Clock    uint64        // the clock word found; FirstEpoch-1 for a new heap
	Boundary uint64        // last epoch that counts
	Live     uint64        // blocks kept
	Scrubbed uint64        // words of discarded epochs replaced
	Damaged  uint64        // blocks and headers found damaged
	Bytes    uint64        // of superblocks swept
	Elapsed  time.Duration // of the sweep
}

// Heap recovers the region under a. When every block is judged, known is asked
// which owners there are.
//
// Crash points: before the last step the clock reads C and every decision is the
// same again (R3); the words replaced so far read as decided. After it the clock
// reads C+1 and no word of an epoch beyond B is left on media (R2).
func Heap(ctx context.Context, r *persist.Region, a *alloc.Allocator, opt Options, known func() (map[alloc.Owner]bool, error)) (res Result, err error) {
	start := time.Now()
	h := r.Handle()
	clock, err := readClock(r)
	if err != nil {
		return res, err
	}
	if units, ok := persist.Unseal(r.Load(persist.SizeOff)); !ok {
		return res, &persist.CorruptError{File: r.Path(), Off: persist.SizeOff, Rule: "P5: size word: wrong check byte"}
	} else if have := r.Size() / persist.UnitSize; units > have {
		return res, &persist.CorruptError{File: r.Path(), Off: persist.Off(r.Size()), Rule: fmt.Sprintf("P6: the file is cut short: %d units, once %d", have, units)}
	}
	clean := r.Load(persist.CleanOff)
	res.Clean = clock == 0 || clean == persist.Seal(clock)
	if clock == 0 {
		clock = FirstEpoch - 1
	}
	if !mutant.Is(mutant.ClockNotRepersisted) {
		h.WriteBack(persist.ClockOff, 8)
		if err := fence(&h, r); err != nil {
			return res, err
		}
	}
	res.Clock, res.Boundary = clock, clock-2

	g := newGuard(opt, r.Path())
	if err := a.Scan(g.damage); err != nil {
		return res, err
	}
	m := newMeter(opt.Progress, Progress{Phase: "sweep", Total: a.Bytes()})
	var live sharded
	var scrubbed atomic.Uint64
	judge := func(owner alloc.Owner, off persist.Off, w uint64) (alloc.Verdict, uint64) {
		if w == 0 {
			return alloc.Dead, 0
		}
		word := payload.Word(w)
		if !word.Valid() || word.Epoch() > clock {
			g.damage(&persist.CorruptError{File: r.Path(), Off: off, Rule: fmt.Sprintf("L1: control word %#x in structure %d: wrong check byte, state or epoch", w, owner)})
			return alloc.Damaged, w
		}
		keep, now := word.Judge(res.Boundary)
		if mutant.Is(mutant.NoScrub) {
			now = word
		}
		if now != word {
			scrubbed.Add(1)
		}
		if keep {
			live.add(off)
			return alloc.Live, uint64(now)
		}
		return alloc.Dead, uint64(now)
	}
	apply, err := a.Sweep(ctx, opt.Workers, !res.Clean && !mutant.Is(mutant.WordsNotRepersisted), judge, m.add)
	if err = cmp.Or(err, g.strictErr()); err != nil {
		return res, err // and nothing has changed
	}
	apply()
	owners, err := known()
	if err != nil {
		return res, err
	}
	if g.count.Load() == 0 { // else entries may be missing from the directory: give up nobody
		a.Disown(func(o alloc.Owner) bool { return owners[o] })
	}
	r.Point("scrubbed")

	res.Live, res.Scrubbed, res.Damaged = live.sum(), scrubbed.Load(), g.count.Load()
	res.Bytes, res.Elapsed = m.end(), time.Since(start)
	if r.ReadOnly() {
		return res, nil
	}
	h.Store(persist.CleanOff, 0)
	h.WriteBack(persist.CleanOff, 8)
	h.Store(persist.SizeOff, sizeWord(r))
	h.WriteBack(persist.SizeOff, 8)
	r.SetBootID(&h)
	h.Order()
	h.Store(persist.ClockOff, persist.Seal(clock+1))
	h.WriteBack(persist.ClockOff, 8)
	return res, fence(&h, r)
}

// sharded counts blocks; workers, which are in different superblocks, do not share
// lines of it.
type sharded [16]struct {
	n atomic.Uint64
	_ [persist.LineSize - 8]byte
}

func (s *sharded) add(off persist.Off) { s[off/persist.UnitSize%16].n.Add(1) }

func (s *sharded) sum() (n uint64) {
	for i := range s {
		n += s[i].n.Load()
	}
	return n
}

func readClock(r *persist.Region) (uint64, error) {
	w := r.Load(persist.ClockOff)
	v, ok := persist.Unseal(w)
	if !ok || (v != 0 && v < FirstEpoch) {
		return 0, &persist.CorruptError{File: r.Path(), Off: persist.ClockOff, Rule: fmt.Sprintf("P5: epoch clock word %#x: wrong check byte or epoch", w)}
	}
	return v, nil
}

func fence(h *persist.Handle, r *persist.Region) error {
	if err := h.Fence(); err != nil {
		return fmt.Errorf("%w: %s: %w", persist.ErrDurability, r.Path(), err)
	}
	return nil
}

// MarkClean records, durably, that the heap was closed with the clock at c.
func MarkClean(r *persist.Region, c uint64) error {
	h := r.Handle()
	h.Store(persist.SizeOff, sizeWord(r))
	h.Store(persist.CleanOff, persist.Seal(c))
	h.WriteBack(persist.CleanOff, 16) // both words
	return fence(&h, r)
}

func sizeWord(r *persist.Region) uint64 { return persist.Seal(r.Size() / persist.UnitSize) }

// guard collects damage under a policy, from several goroutines.
type guard struct {
	opt   Options
	file  string
	count atomic.Uint64
	mu    sync.Mutex
	first error
}

func newGuard(opt Options, file string) *guard { return &guard{opt: opt, file: file} }

// damage returns the error under Strict, nil under Salvage.
func (g *guard) damage(e *persist.CorruptError) error {
	g.count.Add(1)
	if g.opt.Policy == Salvage {
		if g.opt.Damage != nil {
			g.opt.Damage(e)
		}
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first == nil {
		g.first = e
	}
	return e
}

func (g *guard) strictErr() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.first
}

// meter throttles progress.
type meter struct {
	f    func(Progress)
	p    Progress
	done atomic.Uint64
	next atomic.Int64
}

const progressEvery = 100 * time.Millisecond

func newMeter(f func(Progress), p Progress) *meter {
	m := &meter{f: f, p: p}
	m.next.Store(time.Now().Add(progressEvery).UnixNano())
	return m
}

func (m *meter) add(n int) {
	d := m.done.Add(uint64(n))
	if m.f == nil {
		return
	}
	now, next := time.Now().UnixNano(), m.next.Load()
	if now >= next && m.next.CompareAndSwap(next, now+int64(progressEvery)) {
		p := m.p
		p.Done = d
		m.f(p)
	}
}

func (m *meter) end() uint64 {
	d := m.done.Load()
	if m.f != nil {
		p := m.p
		p.Done, p.Total = d, d
		m.f(p)
	}
	return d
}
