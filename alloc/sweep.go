package alloc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist"
)

// Verdict is what a judge says of a block.
type Verdict uint8

const (
	Dead    Verdict = iota // free
	Live                   // in use
	Damaged                // its control word makes no sense: neither used nor handed out
)

// Judge decides a block's fate from its control word, and returns the word the
// block is to have from now on.
type Judge func(owner Owner, off persist.Off, word uint64) (v Verdict, now uint64)

// Scan walks the superblock headers from the first unit to the last (A1) and
// fills the volatile tables. What it reads it writes back and orders: a header
// that a cache kept through a process crash may never have reached media. Each
// damaged header is reported; where damage
// returns nil the walk goes on at the next unit; neither the damaged one nor any
// behind it is handed out again while the heap is open, for they may belong to the
// superblock whose length is lost.
func (a *Allocator) Scan(damage func(*persist.CorruptError) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.h.Order()
	report := func(u int, rule string) error {
		return damage(&persist.CorruptError{File: a.r.Path(), Off: persist.Off(u) * unit, Rule: rule})
	}
	for u := 1; u < a.pool.frontier; {
		owner, units, cl, bad := decodeHeader(a.r.Load(persist.Off(u) * unit))
		a.h.WriteBack(persist.Off(u)*unit, 8)
		if bad == "" && u+units > a.pool.frontier {
			bad = fmt.Sprintf("A1: superblock header: %d units from here end behind the file", units)
		}
		switch {
		case bad != "":
			if err := report(u, bad); err != nil {
				return err
			}
			a.suspect = min(a.suspect, u)
			u++
			continue
		case owner == 0:
			if u < a.suspect {
				a.pool.give(extent{start: u, n: 1, bare: true})
			}
			u++
			continue
		}
		sb := a.table.at(u)
		*sb = superblock{head: int32(u), space: a.spaceLocked(owner).index, units: int32(units), class: uint8(cl)}
		for i := 1; i < units; i++ {
			a.table.at(u + i).head = int32(u)
		}
		if cl == runClass {
			s := a.spaceOf(sb)
			s.runs.runs, s.runs.units = s.runs.runs+1, s.runs.units+units
		}
		u += units
	}
	return nil
}

// Sweep judges every block on k goroutines, and returns a function that carries
// out what was decided: it stores the words that change, and gives dead blocks to
// the pools. Until then the region is as it was. What changes is written back and
// ordered before apply returns; if unclean, so are all other words, for a dead one
// that a cache kept through a process crash may hide a live one on media.
// progress, if set, is told bytes of superblocks as they are done, from any
// goroutine.
func (a *Allocator) Sweep(ctx context.Context, k int, unclean bool, judge Judge, progress func(bytes int)) (apply func(), err error) {
	a.mu.Lock()
	var todo []*superblock
	a.walkLocked(func(sb *superblock) { todo = append(todo, sb) })
	a.mu.Unlock()

	var next atomic.Int64
	var panicked atomic.Pointer[any] // by the judge or progress
	k = max(min(k, len(todo)), 1)
	changes := make([][]change, k)
	work := func(worker int) {
		defer func() {
			if p := recover(); p != nil {
				panicked.Store(&p)
			}
		}()
		h := a.r.Handle()
		defer h.Order()
		for ctx.Err() == nil && panicked.Load() == nil {
			i := int(next.Add(1)) - 1
			if i >= len(todo) {
				return
			}
			changes[worker] = a.sweepOne(todo[i], &h, unclean, judge, changes[worker])
			if progress != nil {
				progress(int(todo[i].units) * unit)
			}
		}
	}
	if k == 1 {
		work(0)
	} else {
		var wg sync.WaitGroup
		for i := range k {
			wg.Go(func() { work(i) })
		}
		wg.Wait()
	}
	if p := panicked.Load(); p != nil {
		panic(*p)
	}
	return func() { a.apply(todo, changes) }, ctx.Err()
}

// change is a control word that a sweep replaces.
type change struct {
	off persist.Off
	now uint64
}

func (a *Allocator) sweepOne(sb *superblock, h *persist.Handle, unclean bool, judge Judge, changes []change) []change {
	owner := a.spaceOf(sb).id
	size, count := sb.size(), sb.count()
	off := sb.block(0)
	for i := range count {
		word := a.r.Load(off)
		v, now := judge(owner, off, word)
		if now != word {
			changes = append(changes, change{off, now})
		} else if unclean && word != 0 {
			h.WriteBack(off, 8)
		}
		if v == Dead {
			sb.setFree(i)
		}
		off += persist.Off(size)
	}
	return changes
}

func (a *Allocator) apply(todo []*superblock, changes [][]change) {
	h := a.r.Handle()
	for _, list := range changes {
		for _, c := range list {
			a.r.Set(c.off, c.now)
			h.WriteBack(c.off, 8)
		}
	}
	if !mutant.Is(mutant.ClockBeforeScrub) {
		h.Order()
	}
	for _, sb := range todo {
		switch {
		case int(sb.free) == sb.count():
			a.release(sb)
		case sb.class != runClass:
			a.spaceOf(sb).pools[sb.class].adopt(sb)
		}
	}
}

// Bytes returns how many bytes the superblocks take.
func (a *Allocator) Bytes() (n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.walkLocked(func(sb *superblock) { n += uint64(sb.units) * unit })
	return n
}

// Owners returns the owners that superblocks name.
func (a *Allocator) Owners() map[Owner]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := map[Owner]bool{}
	a.walkLocked(func(sb *superblock) { m[a.spaceOf(sb).id] = true })
	return m
}

// Disown clears the headers of superblocks whose owners are not wanted, and
// frees their units. The headers are ordered before it returns: an owner's
// number may be used again.
//
// Crash points: each header is one word; those still there are disowned again.
func (a *Allocator) Disown(want func(Owner) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.walkLocked(func(sb *superblock) {
		if want(a.spaceOf(sb).id) {
			return
		}
		if sb.units == 1 {
			a.h.Store(sb.off(), 0)
			a.h.WriteBack(sb.off(), 8)
		}
		a.releaseLocked(sb)
	})
	a.h.Order()
}

// Superblock describes one superblock to those who walk blocks.
type Superblock struct {
	First     persist.Off // offset of the first block
	BlockSize int
	Count     int
}

// Superblocks returns those of an owner, in order of address.
func (a *Allocator) Superblocks(id Owner) (list []Superblock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.walkLocked(func(sb *superblock) {
		if a.spaceOf(sb).id == id {
			list = append(list, Superblock{sb.block(0), sb.size(), sb.count()})
		}
	})
	return list
}
