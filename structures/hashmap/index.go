package hashmap

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/tidemark-db/tidemark/payload"
)

// An entry's payload, tag 1, little-endian: u32 length of the key, key, value.
const (
	entryTag  = 1
	keyHeader = 4
)

// split returns key and value of an entry's contents; ok is false where they
// make no sense.
func split(b []byte) (key, val []byte, ok bool) {
	if len(b) < keyHeader {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-keyHeader) {
		return nil, nil, false
	}
	return b[keyHeader : keyHeader+n], b[keyHeader+n:], true
}

func (m *Map) hash(key []byte) uint64 { return maphash.Bytes(m.seed, key) }

func (m *Map) entry(w word) (key, val []byte) {
	key, val, _ = split(m.space.Bytes(w.ref()))
	return key, val
}

// lock locks the bucket of h in the newest table it was moved to. To write, it
// moves the bucket first if the table is growing.
func (m *Map) lock(h uint64, write bool) (*table, *bucket, uint64) {
	t := m.table.Load()
	for {
		i := h & t.mask
		b := &t.buckets[i]
		ctl := b.lock()
		next := t.next.Load()
		switch {
		case next == nil || ctl&moved == 0 && !write:
			return t, b, ctl
		case ctl&moved == 0:
			ctl = m.move(t, next, i, ctl)
		}
		b.unlock(ctl)
		t = next
	}
}

// find returns the place of the key's word in a locked bucket, or nil.
func (m *Map) find(t *table, b *bucket, ctl, h uint64, key []byte) *word {
	tag := word(h) & tagMask
	for {
		n := bucketWords
		if ctl&chained != 0 {
			n--
		}
		for i := range b.words[:n] {
			w := &b.words[i]
			if *w&tagMask == tag && *w != 0 {
				if k, _ := m.entry(*w); bytes.Equal(k, key) {
					return w
				}
			}
		}
		if ctl&chained == 0 {
			return nil
		}
		b = t.over.at(b.words[bucketWords-1])
		ctl = b.ctl.Load()
	}
}

// findRef returns the place of the word that names ref in a locked bucket, or nil.
func (t *table) findRef(b *bucket, ctl uint64, ref payload.Ref) (place *word) {
	t.chain(b, ctl, func(words []word) bool {
		for i := range words {
			if words[i] != 0 && words[i].ref() == ref {
				place = &words[i]
				return true
			}
		}
		return false
	})
	return place
}

// move moves the entries of bucket i, which is locked, to the next table and
// returns the new ctl. Nobody else comes to the places they go to before the
// moved flag shows (H4).
func (m *Map) move(t, next *table, i uint64, ctl uint64) uint64 {
	n := uint64(len(t.buckets))
	b := &t.buckets[i]
	to := [2]*bucket{&next.buckets[i], &next.buckets[i+n]}
	ctls := [2]uint64{stamped(0, ctl>>stampShift), stamped(0, ctl>>stampShift)}
	t.chain(b, ctl, func(words []word) bool {
		for _, w := range words {
			if w != 0 {
				key, _ := m.entry(w)
				up := m.hash(key) & n / n
				ctls[up], _ = next.add(to[up], ctls[up], w)
			}
		}
		return false
	})
	to[0].unlock(ctls[0])
	to[1].unlock(ctls[1])
	ctl = t.empty(b, ctl) | moved
	if t.left.Add(-1) == 0 {
		m.table.CompareAndSwap(t, next)
	}
	return ctl
}

// grow starts a larger table if the present one is too full.
func (m *Map) grow(t *table) {
	if t != m.table.Load() || float64(m.len()) <= fullLoad*float64(len(t.buckets)) {
		return
	}
	if t.next.Load() == nil && m.growing.CompareAndSwap(false, true) {
		if t == m.table.Load() && t.next.Load() == nil {
			t.next.Store(newTable(2*len(t.buckets), t.over))
		}
		m.growing.Store(false)
	}
}

// assist moves a few buckets of a growing table.
func (m *Map) assist() {
	t := m.table.Load()
	next := t.next.Load()
	if next == nil {
		return
	}
	op := m.h.Begin() // keeps the heap mapped
	defer op.End()
	if _, err := op.Slot(); err != nil {
		return
	}
	for range 4 {
		i := t.cursor.Add(1) - 1
		if i > t.mask {
			return
		}
		b := &t.buckets[i]
		ctl := b.lock()
		if ctl&moved == 0 {
			ctl = m.move(t, next, i, ctl)
		}
		b.unlock(ctl)
	}
}
