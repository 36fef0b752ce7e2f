package epoch

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist"
)

var (
	// ErrOpEnded: an operation handle was used after its End or Abort.
	ErrOpEnded = errors.New("tidemark: operation has ended")
	// ErrOldSeesNew: the operation met something a newer epoch left. Abort it and
	// begin again; Heap.Do does so by itself.
	ErrOldSeesNew = errors.New("tidemark: operation of an old epoch meets a newer one")
	// ErrOtherHeap: an operation of one heap was used on another.
	ErrOtherHeap = errors.New("tidemark: operation of another heap")
	// ErrConflict: another operation that has not ended holds what this one needs.
	// Abort it and begin again; Heap.Do does so by itself.
	ErrConflict = errors.New("tidemark: held by another operation")
)

// A Slot is what an operation owns while it runs: its published epoch and its
// lists. Structures reach it through [Op.Slot]. Only the operation's goroutine
// may use it; the advancer reads the lists of epochs no operation is in.
type Slot struct {
	// word is gen<<48 | epoch<<1 | active. Begin stores it with a compare and
	// swap, End with a store; the pair orders everything else in the slot.
	word  atomic.Uint64
	wrote atomic.Uint64 // newest epoch in which an operation recorded anything
	_     [persist.LineSize - 16]byte

	sys   *System
	id    int
	h     persist.Handle
	local any
	epoch uint64
	lists [4]lists // by epoch mod 4: the current, the one before, and two being reclaimed

	// The running operation.
	busy   bool   // any of the following is not empty
	marked bool   // mark is set
	mark   [2]int // lengths of lists[epoch].retired and .detached before its first retirement
	freed  []persist.Off
	undo   []undo
	saved  []byte
	joins  []join
	index  map[uint64]struct{} // keys of joins, once they are many

	dcss descriptor
	_    [persist.LineSize]byte
}

// lists is what one epoch recorded in one slot.
type lists struct {
	writeBack []span
	retired   []persist.Off // reusable once the retirement is durable
	detached  []persist.Off // reusable once no reader can hold them, either
}

type span struct {
	off persist.Off
	n   int
}

// undo is one step of an abort: store word at off; or, with n > 0, copy back n
// saved bytes.
type undo struct {
	off  persist.Off
	word uint64
	n    int
	free bool // the block is the operation's own: free it
}

// Participant is a structure whose volatile state follows an operation.
type Participant interface {
	// Commit is called by End, Abort by Abort, with what Join was given, while
	// the operation's slot is still held.
	Commit(op Op, a, b uint64)
	Abort(op Op, a, b uint64)
}

type join struct {
	p         Participant
	key, a, b uint64
}

// manyJoins is the number of joins from which they are indexed.
const manyJoins = 32

// genShift places the generation in a slot's word: an Op kept after its end does
// not match the slot any more.
const (
	genShift  = 48
	genOne    = 1 << genShift
	genMask   = ^uint64(genOne - 1)
	active    = 1
	maxEpoch  = 1<<47 - 1
	closedBit = 1 << 63 // in System.clock only
)

func wordEpoch(w uint64) uint64 { return w &^ genMask >> 1 }

// ID returns the slot's number, from 0. No two running operations share one.
func (s *Slot) ID() int { return s.id }

// Local returns what Config.NewLocal made for the slot.
func (s *Slot) Local() any {
	if s.local == nil {
		s.local = s.sys.newLocal()
	}
	return s.local
}

// Region returns the region whose clock the operation runs by.
func (s *Slot) Region() *persist.Region { return s.sys.r }

// Epoch returns the operation's epoch.
func (s *Slot) Epoch() uint64 { return s.epoch }

// Err returns why nothing can be made durable any more, or nil.
func (s *Slot) Err() error { return s.sys.Err() }

// Touch records that [off, off+n) was stored to in this epoch and must be
// written back before it counts. Call it after the stores.
func (s *Slot) Touch(off persist.Off, n int) {
	if s.wrote.Load() != s.epoch {
		s.wrote.Store(s.epoch)
	}
	if s.sys.elide {
		return
	}
	l := &s.lists[s.epoch&3].writeBack
	*l = append(*l, span{off, n})
	switch {
	case s.sys.strategy == Direct:
		s.busy = true
	case s.sys.strategy == Buffered && len(*l) >= BufferedSpans:
		half := len(*l) / 2
		s.writeBack((*l)[:half])
		*l = (*l)[:copy(*l, (*l)[half:])]
		s.busy = true
	}
}

// Forget removes what Touch recorded at off; for mutants only.
func (s *Slot) Forget(off persist.Off) {
	l := &s.lists[s.epoch&3].writeBack
	*l = slices.DeleteFunc(*l, func(x span) bool { return x.off == off })
}

// BufferedSpans is how many ranges a slot holds in the Buffered strategy.
const BufferedSpans = 1000

func (s *Slot) writeBack(spans []span) {
	for _, x := range spans {
		s.h.WriteBack(x.off, x.n)
	}
}

// Created records a block whose control word the operation is about to make
// live. An abort stores word in it and frees it.
func (s *Slot) Created(off persist.Off, word uint64) {
	s.busy = true
	s.undo = append(s.undo, undo{off: off, word: word, free: true})
}

// Changed records a control word before the operation changes it. An abort
// stores it again.
func (s *Slot) Changed(off persist.Off, word uint64) {
	s.busy = true
	s.undo = append(s.undo, undo{off: off, word: word})
}

// Save keeps the bytes of [off, off+n) before the operation changes them in
// place. An abort copies them back.
func (s *Slot) Save(off persist.Off, n int) {
	s.busy = true
	s.undo = append(s.undo, undo{off: off, n: n})
	s.saved = append(s.saved, s.sys.r.Bytes(off, n)...)
}

// Retired records a block retired by this operation, to be freed once that is
// durable (E3). detached says that readers may reach it without a lock.
func (s *Slot) Retired(off persist.Off, detached bool) {
	s.busy = true
	l := &s.lists[s.epoch&3]
	if !s.marked {
		s.marked, s.mark = true, [2]int{len(l.retired), len(l.detached)}
	}
	if detached {
		l.detached = append(l.detached, off)
	} else {
		l.retired = append(l.retired, off)
	}
}

// Freed records a block of this epoch that the operation deleted: it may be
// used again as soon as the operation ends.
func (s *Slot) Freed(off persist.Off) {
	s.busy = true
	s.freed = append(s.freed, off)
}

// Join has p told how the operation ends. key, which [Slot.Joined] finds, must
// name something in the heap: a payload.
func (s *Slot) Join(p Participant, key, a, b uint64) {
	s.busy = true
	s.joins = append(s.joins, join{p, key, a, b})
	if len(s.joins) > manyJoins {
		if s.index == nil {
			s.index = make(map[uint64]struct{})
			for i := range s.joins {
				s.index[s.joins[i].key] = struct{}{}
			}
		}
		s.index[key] = struct{}{}
	}
}

// Joined reports whether Join was called with the key.
func (s *Slot) Joined(key uint64) bool {
	if s.index != nil {
		_, ok := s.index[key]
		return ok
	}
	for i := range s.joins {
		if s.joins[i].key == key {
			return true
		}
	}
	return false
}

// commit carries out what waited for the end of the operation.
func (s *Slot) commit(op Op) {
	for _, j := range s.joins {
		j.p.Commit(op, j.a, j.b)
	}
	for _, off := range s.freed { // after the joins, which may read them
		s.sys.blocks.Free(s.Local(), off)
	}
	if s.sys.strategy == Direct && !s.sys.elide {
		l := &s.lists[s.epoch&3].writeBack
		s.writeBack(*l)
		*l = (*l)[:0]
	}
	s.h.Order() // what this slot wrote back, before the next clock store
	s.reset()
}

// abort undoes in reverse (E4). The words it stores are written back with the
// epoch: an eviction may have put what they replace on media.
//
// The words come first, since a structure's Abort lets others at the payloads;
// the operation's own blocks are freed last, since it may still read them.
func (s *Slot) abort(op Op) {
	if mutant.Is(mutant.NoUndo) {
		s.undo = s.undo[:0]
	}
	if s.marked {
		l := &s.lists[s.epoch&3]
		l.retired, l.detached = l.retired[:s.mark[0]], l.detached[:s.mark[1]]
	}
	for i := len(s.undo) - 1; i >= 0; i-- {
		u := &s.undo[i]
		if u.n > 0 {
			old := s.saved[len(s.saved)-u.n:]
			copy(s.sys.r.Bytes(u.off, u.n), old)
			s.sys.r.Wrote(u.off, u.n)
			s.saved = s.saved[:len(s.saved)-u.n]
			s.Touch(u.off, u.n)
			continue
		}
		s.sys.r.Set(u.off, u.word)
		if mutant.Is(mutant.AbortNotWrittenBack) {
			s.Forget(u.off)
		} else {
			s.Touch(u.off, 8)
		}
	}
	for i := len(s.joins) - 1; i >= 0; i-- {
		s.joins[i].p.Abort(op, s.joins[i].a, s.joins[i].b)
	}
	for _, u := range s.undo {
		if u.free {
			s.sys.blocks.Free(s.Local(), u.off)
		}
	}
	s.freed, s.joins = s.freed[:0], s.joins[:0]
	s.commit(op)
}

func (s *Slot) reset() {
	clear(s.joins)
	s.freed, s.undo, s.joins, s.saved = s.freed[:0], s.undo[:0], s.joins[:0], s.saved[:0]
	s.index = nil
	if cap(s.saved) > 1<<20 {
		s.saved = nil
	}
	s.busy, s.marked = false, false
}

// Op is a running operation. It is a small value; copies name the same
// operation. The zero Op has ended. An Op is used by one goroutine at a time.
type Op struct {
	s    *Slot
	word uint64
}

// Slot returns the operation's slot, or ErrOpEnded, or ErrClosed for an
// operation begun on a closed heap.
func (op Op) Slot() (*Slot, error) {
	if op.word == 0 || op.s.word.Load() != op.word { // 0 is also the word of an unused slot
		return nil, op.dead()
	}
	return op.s, nil
}

func (op Op) dead() error {
	if op.s != nil && op.word == 0 {
		return persist.ErrClosed
	}
	return ErrOpEnded
}

// Epoch returns the epoch the operation runs in; 0 if it has ended.
func (op Op) Epoch() uint64 {
	if _, err := op.Slot(); err != nil {
		return 0
	}
	return op.s.epoch
}

// End completes the operation. It survives a crash once the clock has ticked
// twice more, or once a Sync called from now on has returned. Ending an
// operation that has ended does nothing, so it can be deferred.
func (op Op) End() {
	s, err := op.Slot()
	if err != nil {
		return
	}
	if s.busy {
		s.commit(op)
	}
	s.word.Store(op.word & genMask)
}

// Abort undoes what the operation did to payloads, has the structures it used
// undo theirs, and ends it. Aborting an operation that has ended does nothing.
func (op Op) Abort() {
	s, err := op.Slot()
	if err != nil {
		return
	}
	if s.busy {
		s.abort(op)
	}
	s.word.Store(op.word & genMask)
}
