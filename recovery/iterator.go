package recovery

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
)

// Iterator walks some of a structure's surviving payloads, in no useful order.
// Each iterator of a set may run on its own goroutine; together they hand out
// every payload once (R4). Payloads must not change meanwhile.
type Iterator struct {
	ctx   context.Context
	r     *persist.Region
	space *payload.Space
	name  string
	g     *guard
	m     *meter

	sbs  []alloc.Superblock
	sb   alloc.Superblock // what is left of the current one
	size int              // bytes the current one had
	ref  payload.Ref
	err  error

	_ [2 * persist.LineSize]byte // apart from what its neighbours' goroutines write
}

// Iterators returns k of them over the payloads of owner.
func Iterators(ctx context.Context, r *persist.Region, a *alloc.Allocator, space *payload.Space, owner alloc.Owner, name string, k int, opt Options) []*Iterator {
	sbs := a.Superblocks(owner)
	var total uint64
	for _, sb := range sbs {
		total += uint64(sb.BlockSize * sb.Count)
	}
	g, m := newGuard(opt, r.Path()), newMeter(opt.Progress, Progress{Phase: "rebuild", Structure: name, Total: total})
	its := make([]*Iterator, max(k, 1))
	for i := range its {
		lo, hi := len(sbs)*i/len(its), len(sbs)*(i+1)/len(its)
		its[i] = &Iterator{ctx: ctx, r: r, space: space, name: name, g: g, m: m, sbs: sbs[lo:hi]}
	}
	return its
}

// Next moves to the next payload. It is false at the end, on damage under
// Strict, and when the context has ended; see Err.
func (it *Iterator) Next() bool {
	for it.err == nil {
		if it.sb.Count == 0 {
			it.m.add(it.size)
			it.size = 0
			if it.err = it.ctx.Err(); it.err != nil || len(it.sbs) == 0 {
				return false
			}
			it.sb, it.sbs = it.sbs[0], it.sbs[1:]
			it.size = it.sb.BlockSize * it.sb.Count
			continue
		}
		off := it.sb.First
		it.sb.First += persist.Off(it.sb.BlockSize)
		it.sb.Count--
		w := payload.Word(it.r.Load(off))
		if w.State() != payload.Live {
			continue
		}
		it.ref = payload.Ref(off)
		rule := "L1: control word: wrong check byte"
		if w.Valid() {
			if rule = it.space.Check(it.ref, it.sb.BlockSize); rule == "" {
				return true
			}
		}
		it.err = it.g.damage(&persist.CorruptError{File: it.r.Path(), Off: off, Structure: it.name, Rule: rule})
	}
	return false
}

// Ref, Tag and Bytes describe the current payload. Bytes is its contents in
// place: copy what is to be kept.
func (it *Iterator) Ref() payload.Ref { return it.ref }
func (it *Iterator) Tag() uint16      { return it.space.Tag(it.ref) }
func (it *Iterator) Bytes() []byte    { return it.space.Bytes(it.ref) }

// Damaged reports the current payload as damaged by a rule of its structure: it
// returns an error under Strict, nil under Salvage.
func (it *Iterator) Damaged(rule string) error { return it.DamagedAt(it.ref, rule) }

// DamagedAt is Damaged for a payload that was handed out earlier.
func (it *Iterator) DamagedAt(ref payload.Ref, rule string) error {
	e := &persist.CorruptError{File: it.r.Path(), Off: persist.Off(ref), Structure: it.name, Rule: rule}
	if err := it.g.damage(e); err != nil {
		it.err = err
		return err
	}
	return nil
}

// Err returns why Next stopped early, or nil.
func (it *Iterator) Err() error { return it.err }

// Damage returns how much damage this set of iterators has met so far.
func (it *Iterator) Damage() uint64 { return it.g.count.Load() }

// Each calls f for every payload of every iterator, one goroutine an iterator,
// and returns the first error. worker is the iterator's index. A panic of f
// reaches the caller, once all goroutines have ended.
func Each(its []*Iterator, f func(worker int, it *Iterator) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(its))
	var panicked atomic.Pointer[any]
	run := func(i int) {
		defer func() {
			if p := recover(); p != nil {
				panicked.Store(&p)
			}
		}()
		for its[i].Next() {
			if errs[i] = f(i, its[i]); errs[i] != nil {
				return
			}
		}
		errs[i] = its[i].Err()
	}
	if len(its) == 1 {
		run(0)
	} else {
		for i := range its {
			wg.Go(func() { run(i) })
		}
		wg.Wait()
	}
	if p := panicked.Load(); p != nil {
		panic(*p)
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if len(its) > 0 {
		its[0].m.end()
	}
	return nil
}
