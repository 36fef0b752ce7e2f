package payload

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist"
)

var (
	// ErrValueTooLarge: contents longer than MaxSize.
	ErrValueTooLarge = errors.New("tidemark: value too large")
	// ErrStaleRef: a Ref that names no live payload of this structure.
	ErrStaleRef = errors.New("tidemark: ref names no live payload")
)

// Space holds the payloads of one structure. Its methods may be called by any
// goroutine that is the only one to touch the payload in question; see the
// package comment.
type Space struct {
	r     *persist.Region
	alloc *alloc.Space
	a     *alloc.Allocator
	types []Descriptor // of tags 1, 2, ...
	sums  bool
}

// NewSpace returns the space of owner, whose typed payloads are of the given
// types. sums says whether payloads get checksums: all do that are to survive.
// Structures get their space from tidemark.Heap.OpenStructure.
func NewSpace(r *persist.Region, a *alloc.Allocator, owner alloc.Owner, sums bool, types ...Descriptor) *Space {
	return &Space{r: r, a: a, alloc: a.Space(owner), types: types, sums: sums}
}

// Region returns the region the space lies in.
func (s *Space) Region() *persist.Region { return s.r }

// Blocks joins an allocator to the epoch clock.
type Blocks struct{ A *alloc.Allocator }

// Free gives a block back through the slot's cache.
func (b Blocks) Free(local any, off persist.Off) { b.A.Free(local.(*alloc.Cache), off) }

// FreeBatch gives blocks back to their pools.
func (b Blocks) FreeBatch(offs []persist.Off) { b.A.FreeBatch(offs) }

// NewLocal makes a slot's local value.
func NewLocal() any { return new(alloc.Cache) }

// New creates a payload whose contents are the parts, one after another. The
// parts may be reused at once. See [Space.Draft] for the rest.
func (s *Space) New(op epoch.Op, tag uint16, parts ...[]byte) (Ref, error) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	d, err := s.Draft(op, tag, size)
	if err != nil {
		return 0, err
	}
	b := d.Bytes
	for _, p := range parts {
		b = b[copy(b, p):]
	}
	return d.Publish(), nil
}

// Draft is a payload whose contents are being written. Nothing survives of it,
// and nothing is lost, until Publish.
type Draft struct {
	Bytes []byte // the contents, arbitrary at first; write them, then Publish

	s    *Space
	slot *epoch.Slot
	off  persist.Off
	hdr  int
	tag  uint16
}

// Draft allocates a payload of size bytes, to be filled in place and published
// within the operation; a draft that is not published is lost space until the
// heap is opened again. The payload survives a crash when its operation does.
// The error matches ErrValueTooLarge, ErrNoSpace, ErrReadOnly, ErrDurability,
// ErrOpEnded or ErrClosed, and then nothing has changed.
func (s *Space) Draft(op epoch.Op, tag uint16, size int) (Draft, error) {
	slot, off, err := s.begin(op, size)
	if err != nil {
		return Draft{}, err
	}
	hdr := headerOf(size)
	return Draft{s.r.Bytes(off+persist.Off(hdr), size), s, slot, off, hdr, tag}, nil
}

// Publish makes the payload live in the operation's epoch. Bytes must not be
// written to any more.
//
// Crash points: the block's word reads dead until the last store, which makes it
// live in an epoch that does not count yet.
func (d *Draft) Publish() Ref {
	s, size, e := d.s, len(d.Bytes), d.slot.Epoch()
	writeHead(s.r.Bytes(d.off, d.hdr), size, d.tag, seal(s.sum(d.Bytes), size, d.tag))
	s.r.Wrote(d.off, d.hdr+size)
	d.slot.Created(d.off, uint64(MakeWord(e, Free)))
	s.r.Set(d.off, uint64(MakeWord(e, Live)))
	if mutant.Is(mutant.PayloadNotWrittenBack) {
		d.slot.Touch(d.off, 8)
		return Ref(d.off)
	}
	d.slot.Touch(d.off, d.hdr+size)
	return Ref(d.off)
}

func (s *Space) sum(b []byte) uint32 {
	if !s.sums {
		return 0
	}
	return crc32.Checksum(b, persist.Castagnoli)
}

// slot returns the slot of op if it runs, and on this heap.
func (s *Space) slot(op epoch.Op) (*epoch.Slot, error) {
	slot, err := op.Slot()
	if err == nil && slot.Region() != s.r {
		return nil, fmt.Errorf("%w: of %s, used on %s", epoch.ErrOtherHeap, slot.Region().Path(), s.r.Path())
	}
	return slot, err
}

// writable says why nothing can be changed, or returns nil.
func (s *Space) writable(slot *epoch.Slot) error {
	if err := slot.Err(); err != nil {
		return err
	}
	if s.r.ReadOnly() {
		return fmt.Errorf("%w: %s", persist.ErrReadOnly, s.r.Path())
	}
	return nil
}

// known returns nil if ref is where a block of this space starts.
func (s *Space) known(ref Ref) error {
	if _, ok := s.BlockSize(ref); !ok {
		return fmt.Errorf("%w: %s: no block of this structure starts at %#x", ErrStaleRef, s.r.Path(), uint64(ref))
	}
	return nil
}

// begin checks what can be checked and allocates.
func (s *Space) begin(op epoch.Op, size int) (*epoch.Slot, persist.Off, error) {
	slot, err := s.slot(op)
	if err != nil {
		return nil, 0, err
	}
	if err := s.writable(slot); err != nil {
		return nil, 0, err
	}
	if uint64(size) > MaxSize {
		return nil, 0, fmt.Errorf("%w: %d bytes, at most %d", ErrValueTooLarge, size, uint64(MaxSize))
	}
	off, _, err := s.alloc.Alloc(slot.Local().(*alloc.Cache), headerOf(size)+size)
	return slot, off, err
}

// word reads the control word of ref for a change in the slot's epoch.
func (s *Space) word(slot *epoch.Slot, ref Ref) (Word, error) {
	if err := s.writable(slot); err != nil {
		return 0, err
	}
	if err := s.known(ref); err != nil {
		return 0, err
	}
	w := Word(s.r.Load(persist.Off(ref)))
	switch {
	case w.State() != Live || !w.Valid():
		return 0, fmt.Errorf("%w: %#x is %v", ErrStaleRef, uint64(ref), w.State())
	case w.Epoch() > slot.Epoch():
		return 0, epoch.ErrOldSeesNew
	}
	return w, nil
}

// Bytes returns the contents of ref, to be read while the payload cannot be
// changed or deleted; nothing else keeps them from changing. Never write to
// them: use Update.
func (s *Space) Bytes(ref Ref) []byte {
	h := readHead(s.r, persist.Off(ref))
	return s.r.Bytes(persist.Off(ref)+persist.Off(h.hdr), h.size)
}

// Tag returns the tag of ref.
func (s *Space) Tag(ref Ref) uint16 { return readHead(s.r, persist.Off(ref)).tag }

// Get returns the contents of ref as Bytes does, or ErrOldSeesNew where they are
// of a newer epoch than the operation's, or ErrStaleRef where it can tell that
// ref is none of a live payload.
func (s *Space) Get(op epoch.Op, ref Ref) ([]byte, error) {
	slot, err := s.slot(op)
	if err != nil {
		return nil, err
	}
	if err := s.see(slot, ref); err != nil {
		return nil, err
	}
	return s.Bytes(ref), nil
}

func (s *Space) see(slot *epoch.Slot, ref Ref) error {
	if err := s.known(ref); err != nil {
		return err
	}
	w := Word(s.r.Load(persist.Off(ref)))
	switch {
	case w.Epoch() > slot.Epoch():
		return epoch.ErrOldSeesNew
	case w.State() != Live:
		return fmt.Errorf("%w: %#x is %v", ErrStaleRef, uint64(ref), w.State())
	}
	return nil
}

// Update has change see the contents of ref to modify them in place, and returns
// the Ref that now names the payload: the same if it was created or changed in
// the operation's own epoch, otherwise that of a copy (L4). The caller must
// store it in place of the old one. change must not keep the slice. If it panics,
// abort the operation.
func (s *Space) Update(op epoch.Op, ref Ref, change func([]byte)) (Ref, error) {
	slot, err := s.slot(op)
	if err != nil {
		return 0, err
	}
	w, err := s.word(slot, ref)
	if err != nil {
		return 0, err
	}
	h := readHead(s.r, persist.Off(ref))
	if w.Epoch() == slot.Epoch() || mutant.Is(mutant.InPlaceAcrossEpochs) {
		off := persist.Off(ref)
		slot.Save(off+8, h.hdr-8+h.size)
		s.change(off, h, change)
		slot.Touch(off, h.hdr+h.size)
		return ref, nil
	}
	_, off, err := s.begin(op, h.size)
	if err != nil {
		return 0, err
	}
	slot.Created(off, uint64(MakeWord(slot.Epoch(), Free)))
	copy(s.r.Bytes(off+8, h.hdr-8+h.size), s.r.Bytes(persist.Off(ref)+8, h.hdr-8+h.size))
	s.change(off, h, change)
	s.r.Set(off, uint64(MakeWord(slot.Epoch(), Live)))
	slot.Touch(off, h.hdr+h.size)
	s.retire(slot, ref, w, false)
	return Ref(off), nil
}

// change lets the author's function at the contents and seals them.
func (s *Space) change(off persist.Off, h head, change func([]byte)) {
	b := s.r.Bytes(off, h.hdr+h.size)
	change(b[h.hdr:])
	writeHead(b, h.size, h.tag, seal(s.sum(b[h.hdr:]), h.size, h.tag))
	s.r.Wrote(off+8, h.hdr-8+h.size)
}

// Delete removes the payload. Nobody else may hold ref. One of the operation's
// own epoch is free when the operation ends; an older one is retired, since a
// crash may still need it.
//
// Crash points, operation in epoch e:
//
//	before the clock's tick to e+2   retired(e) > B: live again
//	after that tick                  retired(e) <= B: free
func (s *Space) Delete(op epoch.Op, ref Ref) error {
	slot, err := s.slot(op)
	if err != nil {
		return err
	}
	w, err := s.word(slot, ref)
	if err != nil {
		return err
	}
	s.retire(slot, ref, w, false)
	return nil
}

// retire stores the word of a deleted payload. A same-epoch one's block is given
// to slot.Freed unless it is detached, which Reclaim will do.
//
// The free word of a same-epoch payload is written back like any other: an
// eviction may have put the live word on media.
func (s *Space) retire(slot *epoch.Slot, ref Ref, w Word, detached bool) {
	off, e := persist.Off(ref), slot.Epoch()
	slot.Changed(off, uint64(w))
	if w.Epoch() == e {
		s.r.Set(off, uint64(MakeWord(e, Free)))
	} else {
		s.r.Set(off, uint64(w.retire(e)))
	}
	switch {
	case w.Epoch() == e && mutant.Is(mutant.FreeNotWrittenBack):
		slot.Forget(off)
	case w.Epoch() != e && mutant.Is(mutant.RetireNotWrittenBack):
	default:
		slot.Touch(off, 8)
	}
	switch {
	case detached:
	case w.Epoch() == e:
		slot.Freed(off)
	default:
		slot.Retired(off, false)
	}
}

// Retire deletes a payload that readers without locks may still hold: from now
// on it is dead to recovery. Call it before the linearization point of the
// removal, within the same operation; its block stays until Reclaim.
func (s *Space) Retire(op epoch.Op, ref Ref) error {
	slot, err := s.slot(op)
	if err != nil {
		return err
	}
	w, err := s.word(slot, ref)
	if err != nil {
		return err
	}
	s.retire(slot, ref, w, true)
	return nil
}

// Reclaim gives back the block of a retired payload once no index leads to it
// any more. The block is used again when the retirement is durable and every
// operation that ran in this epoch has ended (E3). A payload retired but never
// reclaimed is reclaimed by the next recovery.
func (s *Space) Reclaim(op epoch.Op, ref Ref) error {
	slot, err := s.slot(op)
	if err != nil {
		return err
	}
	if err := s.known(ref); err != nil {
		return err
	}
	if w := Word(s.r.Load(persist.Off(ref))); w.State() == Live || w.State() == Owned {
		return fmt.Errorf("%w: %#x is %v, not retired", ErrStaleRef, uint64(ref), w.State())
	}
	slot.Retired(persist.Off(ref), true)
	return nil
}

// Check says what is wrong with the payload at ref, or returns "": a size that
// does not fit its block, or a wrong checksum (L2).
func (s *Space) Check(ref Ref, blockSize int) string { return check(s.r, ref, blockSize) }

// BlockSize returns the size of ref's block if ref is where a block of this
// space starts.
func (s *Space) BlockSize(ref Ref) (int, bool) {
	n, owner, ok := s.a.BlockSize(persist.Off(ref))
	return n, ok && owner == s.alloc.Owner()
}
