package alloc

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist"
)

// Allocator hands out the blocks of one region. Its methods may be called by
// any goroutine, except where they say otherwise.
type Allocator struct {
	r     *persist.Region
	table table

	spaces atomic.Pointer[[]*Space] // by index; 0 is nil

	mu   sync.Mutex // guards the following, and changes of table and spaces
	h    persist.Handle
	pool unitPool
	byID map[Owner]*Space
	// Units from here on are not handed out, except fresh ones: a damaged header
	// before them may have hidden a superblock that they belong to.
	suspect int

	// Scavenge, if set, is asked to give blocks back to their pools when space
	// has run out; it reports whether any were. It is called without locks.
	Scavenge func() bool
}

// Space is the share of one owner: where its blocks come from.
type Space struct {
	a     *Allocator
	id    Owner
	index int32
	pools []pool // by class
	runs  runStats
}

// runStats counts an owner's runs; guarded by the allocator's mutex.
type runStats struct{ runs, units int }

// New returns the allocator of a region whose superblocks have not been looked
// at: call Scan and Sweep before anything else.
func New(r *persist.Region) *Allocator {
	a := &Allocator{r: r, h: r.Handle(), byID: map[Owner]*Space{}}
	a.spaces.Store(&[]*Space{nil})
	a.pool.frontier = int(r.Size() / unit)
	a.suspect = math.MaxInt
	a.table.extend(a.pool.frontier)
	return a
}

// Space returns the space of an owner, the same each time.
func (a *Allocator) Space(id Owner) *Space {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spaceLocked(id)
}

func (a *Allocator) spaceLocked(id Owner) *Space {
	s := a.byID[id]
	if s == nil {
		old := *a.spaces.Load()
		s = &Space{a: a, id: id, index: int32(len(old)), pools: make([]pool, len(classes))}
		all := append(slices.Clone(old), s)
		a.spaces.Store(&all)
		a.byID[id] = s
	}
	return s
}

// Owner returns whose space it is.
func (s *Space) Owner() Owner { return s.id }

// Cache holds free blocks for a caller that uses it alone.
type Cache struct {
	lines [cacheLines]cacheLine
}

const cacheLines = 8

type cacheLine struct {
	s    *Space
	cl   uint8
	n    int32
	offs [32]persist.Off
}

// Alloc returns a block of at least size bytes, control word included, and its
// size. The control word reads dead; the rest is arbitrary. The error matches
// ErrNoSpace, or ErrDurability.
func (s *Space) Alloc(c *Cache, size int) (persist.Off, int, error) {
	cl := classOf(size)
	if cl == runClass {
		off, err := s.allocRun(size)
		return off, size, err
	}
	k := &classes[cl]
	if k.cache > 1 {
		l := s.line(c, cl)
		if l.n == 0 {
			n, err := s.refill(cl, l.offs[:k.cache/2])
			if err != nil {
				return 0, 0, err
			}
			l.n = int32(n)
		}
		l.n--
		return l.offs[l.n], k.size, nil
	}
	var one [1]persist.Off
	_, err := s.refill(cl, one[:])
	return one[0], k.size, err
}

// line returns the cache line of a class, emptying it if another one's blocks
// are in it.
func (s *Space) line(c *Cache, cl int) *cacheLine {
	l := &c.lines[(int(s.index)*5+cl)%cacheLines]
	if l.s != s || int(l.cl) != cl {
		l.spill(int(l.n))
		l.s, l.cl = s, uint8(cl)
	}
	return l
}

// spill returns the n oldest blocks to their pool.
func (l *cacheLine) spill(n int) {
	if n == 0 {
		return
	}
	l.s.freeBatch(int(l.cl), l.offs[:n])
	copy(l.offs[:], l.offs[n:l.n])
	l.n -= int32(n)
}

// Flush returns every cached block to its pool.
func (c *Cache) Flush() (n int) {
	for i := range c.lines {
		n += int(c.lines[i].n)
		c.lines[i].spill(int(c.lines[i].n))
	}
	return n
}

// Free gives back a block whose control word is durably dead, or was never
// stored (A3).
func (a *Allocator) Free(c *Cache, off persist.Off) {
	sb := a.find(off)
	s := a.spaceOf(sb)
	k := 0
	if sb.class != runClass {
		k = classes[sb.class].cache
	}
	if k <= 1 {
		a.FreeBatch([]persist.Off{off})
		return
	}
	l := s.line(c, int(sb.class))
	if int(l.n) == k {
		l.spill(k / 2)
	}
	l.offs[l.n] = off
	l.n++
}

// FreeBatch gives back blocks as Free does, to their pools.
func (a *Allocator) FreeBatch(offs []persist.Off) {
	for len(offs) > 0 {
		sb := a.find(offs[0])
		s, cl := a.spaceOf(sb), sb.class
		if cl == runClass {
			a.release(sb)
			offs = offs[1:]
			continue
		}
		n := 1
		for n < len(offs) {
			if next := a.find(offs[n]); next.space != s.index || next.class != cl {
				break
			}
			n++
		}
		s.freeBatch(int(cl), offs[:n])
		offs = offs[n:]
	}
}

func (a *Allocator) find(off persist.Off) *superblock {
	u := a.table.at(int(off / unit))
	if u == nil || u.head == 0 {
		panic(fmt.Sprintf("tidemark: %s: no block at %#x", a.r.Path(), uint64(off)))
	}
	return a.table.at(int(u.head))
}

func (a *Allocator) spaceOf(sb *superblock) *Space { return (*a.spaces.Load())[sb.space] }

// BlockSize returns the size of the block at off; ok is false where no block
// starts. Offsets of other heaps and stale ones are told only so far.
func (a *Allocator) BlockSize(off persist.Off) (n int, owner Owner, ok bool) {
	u := a.table.at(int(off / unit))
	if u == nil || u.head == 0 {
		return 0, 0, false
	}
	sb := a.table.at(int(u.head))
	_, ok = sb.indexOf(off)
	return sb.size(), a.spaceOf(sb).id, ok
}

// refill takes free blocks of a class, at least one.
func (s *Space) refill(cl int, dst []persist.Off) (int, error) {
	n, err := s.take(cl, dst)
	if err != nil && s.a.Scavenge != nil && s.a.Scavenge() {
		n, err = s.take(cl, dst)
	}
	return n, err
}

func (s *Space) take(cl int, dst []persist.Off) (n int, err error) {
	p := &s.pools[cl]
	p.mu.Lock()
	defer p.mu.Unlock()
	if n = min(len(dst), len(p.ready)); n > 0 {
		rest := len(p.ready) - n
		copy(dst, p.ready[rest:])
		p.ready = p.ready[:rest]
		return n, nil
	}
	for n < len(dst) {
		if p.head == 0 {
			if n > 0 {
				break
			}
			sb, err := s.a.newSuperblock(s, cl, classes[cl].units)
			if err != nil {
				return 0, err
			}
			sb.fill()
			p.adopt(sb)
		}
		sb := s.a.table.at(int(p.head))
		if int(sb.free) == sb.count() {
			p.spare--
		}
		got := sb.takeFree(dst[n:])
		n += got
		p.free -= int64(got)
		if sb.free == 0 {
			p.head, sb.next, sb.listed = sb.next, 0, false
		}
	}
	return n, nil
}

// fill marks every block free.
func (sb *superblock) fill() {
	for i := range sb.count() {
		sb.setFree(i)
	}
}

// adopt adds a superblock to its pool.
func (p *pool) adopt(sb *superblock) {
	p.superblocks++
	p.free += int64(sb.free)
	if sb.free > 0 {
		p.push(sb)
	}
}

func (p *pool) push(sb *superblock) {
	sb.next, sb.listed = p.head, true
	p.head = sb.head
	if int(sb.free) == sb.count() {
		p.spare++
	}
}

// freeBatch takes back blocks of one class.
func (s *Space) freeBatch(cl int, offs []persist.Off) {
	p := &s.pools[cl]
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(offs), max(0, min(readyBlocks, readyBytes/classes[cl].size)-len(p.ready)))
	p.ready = append(p.ready, offs[:n]...)
	s.settle(cl, p, offs[n:])
}

// settle marks blocks free. A superblock that becomes wholly free stays with its
// pool while it is the only such one.
func (s *Space) settle(cl int, p *pool, offs []persist.Off) {
	for _, off := range offs {
		sb := s.a.find(off)
		i, ok := sb.indexOf(off)
		if !ok || !sb.setFree(i) {
			panic(fmt.Sprintf("tidemark: %s: block %#x freed twice or never allocated", s.a.r.Path(), uint64(off)))
		}
		p.free++
		switch {
		case !sb.listed:
			p.push(sb)
		case int(sb.free) == sb.count():
			p.spare++
		}
		if int(sb.free) == sb.count() && p.spare > 1 {
			p.remove(s.a, sb)
			s.a.release(sb)
		}
	}
}

// remove takes a wholly free superblock out of the list.
func (p *pool) remove(a *Allocator, sb *superblock) {
	for link := &p.head; *link != 0; {
		at := a.table.at(int(*link))
		if at == sb {
			*link, sb.next, sb.listed = sb.next, 0, false
			p.spare--
			p.superblocks--
			p.free -= int64(sb.free)
			return
		}
		link = &at.next
	}
}

// newSuperblock takes units and makes their header durable enough (A1, A2).
//
// Crash points. Fresh units are zero on media. Until the header is durable they
// read as no superblock; it is ordered before the next clock store, so it is
// durable before any epoch counts that stored into it. Used units still carry an
// old header and old contents. First the old header goes, durably, for some of
// its words may be dead in caches only, and zeroing them would hide that from a
// recovery after a process crash. Zeroing the new control words next means that
// the new header, once durable, finds them dead. The last fence keeps contents,
// which are plain stores, from reaching media before the header, where inner
// units of a longer superblock could look like headers.
func (a *Allocator) newSuperblock(s *Space, cl, units int) (*superblock, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.r.ReadOnly() {
		return nil, fmt.Errorf("%w: %s", persist.ErrReadOnly, a.r.Path())
	}
	start, fresh, err := a.pool.take(a.r, units)
	if err != nil {
		return nil, err
	}
	a.table.extend(start + units)
	sb := a.table.at(start)
	*sb = superblock{head: int32(start), space: s.index, units: int32(units), class: uint8(cl)}
	for u := 1; u < units; u++ {
		a.table.at(start + u).head = int32(start)
	}
	if cl == runClass {
		s.runs.runs, s.runs.units = s.runs.runs+1, s.runs.units+units
	}
	off := sb.off()
	easy := fresh && units == 1
	if !easy {
		for u := range units {
			a.h.Store(off+persist.Off(u)*unit, 0)
			a.h.WriteBack(off+persist.Off(u)*unit, 8)
		}
		if err := a.h.Fence(); err != nil {
			return nil, err
		}
		for i := range sb.count() {
			if mutant.Is(mutant.WordsNotZeroed) {
				break
			}
			a.r.Set(sb.block(i), 0)
			a.h.WriteBack(sb.block(i), 8)
		}
		a.h.Order()
	}
	a.h.Store(off, encodeHeader(s.id, units, cl))
	a.h.WriteBack(off, 8)
	if easy {
		if !mutant.Is(mutant.HeaderNotOrdered) {
			a.h.Order()
		}
		return sb, nil
	}
	if err := a.h.Fence(); err != nil {
		return nil, err
	}
	return sb, nil
}

// allocRun returns the block of a new run.
func (s *Space) allocRun(size int) (persist.Off, error) {
	units := (size + headerSize + unit - 1) / unit
	sb, err := s.a.newSuperblock(s, runClass, units)
	if err != nil && s.a.Scavenge != nil && s.a.Scavenge() {
		sb, err = s.a.newSuperblock(s, runClass, units)
	}
	if err != nil {
		return 0, err
	}
	return sb.block(0), nil
}

// release gives a superblock's units back. All its control words are durably
// dead, or its owner is durably gone, so its header may stay; but one of several
// units must be taken apart first, since its inner units start with contents
// where a walk would look for headers.
//
// Crash points: the inner headers are zero durably before the outer one is.
func (a *Allocator) release(sb *superblock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLocked(sb)
}

func (a *Allocator) releaseLocked(sb *superblock) {
	start, units := int(sb.head), int(sb.units)
	if sb.class == runClass {
		s := a.spaceOf(sb)
		s.runs.runs, s.runs.units = s.runs.runs-1, s.runs.units-units
	}
	if units > 1 {
		for u := 1; u < units && !mutant.Is(mutant.InnerHeadersKept); u++ {
			inner := persist.Off(start+u) * unit
			a.r.Set(inner, 0)
			a.h.WriteBack(inner, 8)
		}
		a.h.Order()
		a.h.Store(sb.off(), 0)
		a.h.WriteBack(sb.off(), 8)
		if a.h.Fence() != nil {
			return // the units are lost until the heap is opened again
		}
	}
	for u := range units {
		*a.table.at(start + u) = superblock{}
	}
	if start < a.suspect {
		a.pool.give(extent{start: start, n: units})
	}
}

// Settle marks free what pools keep ready, so that superblocks without a block in
// use can change hands. It reports whether there was any.
func (a *Allocator) Settle() (any bool) {
	for _, s := range (*a.spaces.Load())[1:] {
		for cl := range s.pools {
			p := &s.pools[cl]
			p.mu.Lock()
			if len(p.ready) > 0 {
				any = true
				s.settle(cl, p, p.ready)
				p.ready = p.ready[:0]
			}
			p.mu.Unlock()
		}
	}
	return any
}

// ReleaseOwner gives back every superblock of an owner that is durably gone and
// that nobody uses any more. It reports how many bytes that freed.
func (a *Allocator) ReleaseOwner(id Owner) (bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.byID[id]
	if s == nil {
		return 0
	}
	a.walkLocked(func(sb *superblock) {
		if sb.space == s.index {
			bytes += uint64(sb.units) * unit
			a.releaseLocked(sb)
		}
	})
	delete(a.byID, id)
	return bytes
}

// Trim gives free runs of at least minBytes back to the file system.
func (a *Allocator) Trim(minBytes int) (bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.pool.free {
		e := &a.pool.free[i]
		if n := e.n * unit; !e.bare && n >= minBytes && a.r.Discard(persist.Off(e.start)*unit, n) {
			e.bare = true
			bytes += uint64(n)
		}
	}
	return bytes
}

// walkLocked calls f for each superblock, in order of address.
func (a *Allocator) walkLocked(f func(*superblock)) {
	for u := 1; u < a.pool.frontier; {
		sb := a.table.at(u)
		if sb.head == 0 {
			u++
			continue
		}
		u += int(sb.units)
		f(sb)
	}
}
