package hashmap

import (
	"bytes"
	"cmp"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/payload"
)

// change is one change of one entry, under its bucket's lock.
type change struct {
	m   *Map
	op  tidemark.Op
	t   *table
	b   *bucket
	ctl uint64
	h   uint64
	w   *word // the key's place, or nil

	added, full bool
}

// apply carries out the request. mark is pending for an operation that goes on
// after the lock is released. On an error nothing has changed.
//
// Crash points: the new payload and the old one's retirement carry one epoch, so
// a boundary has both or neither (H1).
func (c *change) apply(r *request, mark word) (bool, error) {
	var old word
	if c.w != nil {
		old = *c.w
	}
	here := old != 0 && old&dead == 0
	switch r.kind {
	case putIfAbsent:
		if here {
			return false, c.drop(r)
		}
	case remove:
		if !here {
			return false, nil
		}
	case compareAndSwap, compareAndDelete:
		if here != r.present {
			return false, c.drop(r)
		}
		if here {
			if _, val := c.m.entry(old); !bytes.Equal(val, r.old) {
				return false, c.drop(r)
			}
		}
		if r.kind == compareAndDelete && !here {
			return true, nil
		}
	}
	var ref payload.Ref
	var err error
	if r.kind != remove && r.kind != compareAndDelete {
		if ref = r.large; ref == 0 {
			if ref, err = c.m.create(c.op, r); err != nil {
				return false, err
			}
		}
	}
	if here {
		if err := c.m.space.Delete(c.op, old.ref()); err != nil {
			if ref != 0 && mark != 0 {
				c.m.space.Delete(c.op, ref)
			}
			return false, err
		}
	}
	c.place(ref, old, mark)
	slot, err := c.op.Slot()
	if err != nil {
		return false, err
	}
	c.ctl = stamped(c.ctl, slot.Epoch())
	if mark != 0 {
		named := cmp.Or(ref, old.ref())
		slot.Join(c.m, uint64(named), uint64(ref), uint64(old.ref())|uint64(old>>offBits)&flagBits)
	}
	switch {
	case ref != 0 && !here:
		c.m.count(slot.ID(), 1)
	case ref == 0:
		c.m.count(slot.ID(), -1)
	}
	return r.kind != put || here, nil
}

// drop deletes a payload that was made beforehand and is not wanted.
func (c *change) drop(r *request) error {
	if r.large == 0 {
		return nil
	}
	return c.m.space.Delete(c.op, r.large)
}

// place stores the entry word: for ref, or for a deletion if ref is 0.
func (c *change) place(ref payload.Ref, old, mark word) {
	switch {
	case ref != 0 && c.w != nil:
		*c.w = makeWord(c.h, ref) | mark
	case ref != 0:
		c.ctl, c.full = c.t.add(c.b, c.ctl, makeWord(c.h, ref)|mark)
		c.added = true
	case mark != 0:
		*c.w = old | pending | dead
	default:
		*c.w = 0
	}
}

// An operation that goes on joins with a = the new payload or 0, and b = the
// payload that the entry named before, or 0, and in the low bits its flags then.
// Offsets of payloads are multiples of 16.
const flagBits = 3

func unjoin(a, b uint64) (ref, old payload.Ref, was word) {
	return payload.Ref(a), payload.Ref(b &^ flagBits), word(b&flagBits) << offBits
}

// own reports whether the operation itself made w pending.
func (m *Map) own(s *epoch.Slot, w word) bool { return s.Joined(uint64(w.ref())) }

// Commit takes the mark off an entry, or the entry away. An entry the operation
// changed again is left to the later change's Commit.
func (m *Map) Commit(_ tidemark.Op, a, b uint64) {
	ref, old, _ := unjoin(a, b)
	m.settle(cmp.Or(ref, old), func(_ *table, ctl uint64, w *word) uint64 {
		switch {
		case ref == 0 && *w&dead != 0:
			*w = 0
		case ref != 0 && *w&dead == 0:
			*w &^= pending
		}
		return ctl
	})
}

// Abort puts back what the entry was.
func (m *Map) Abort(op tidemark.Op, a, b uint64) {
	ref, old, was := unjoin(a, b)
	here := old != 0 && was&dead == 0
	m.settle(cmp.Or(ref, old), func(_ *table, ctl uint64, w *word) uint64 {
		if old == 0 {
			*w = 0
		} else {
			*w = *w&tagMask | word(old>>4) | was
		}
		return ctl
	})
	switch slot, _ := op.Slot(); {
	case ref != 0 && !here:
		m.count(slot.ID(), -1)
	case ref == 0:
		m.count(slot.ID(), 1)
	}
}

// settle has f see the place of the word that names ref, whose contents are still
// there: its operation has not ended.
func (m *Map) settle(ref payload.Ref, f func(t *table, ctl uint64, w *word) uint64) {
	key, _, _ := split(m.space.Bytes(ref))
	t, b, ctl := m.lock(m.hash(key), true)
	if w := t.findRef(b, ctl, ref); w != nil {
		ctl = f(t, ctl, w)
	}
	b.unlock(ctl)
}
