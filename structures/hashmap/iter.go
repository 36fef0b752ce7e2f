package hashmap

import "iter"

// All returns the entries, in no order. The slices are copies that are valid
// until the loop goes on. No lock is held while the loop's body runs, so it may
// use the map. An entry that is there all the time is seen exactly once; one that
// comes or goes meanwhile may be seen or not. If the heap is closed meanwhile
// the loop ends early.
func (m *Map) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, val []byte) bool) { m.each(true, yield) }
}

// Keys returns the keys as All does.
func (m *Map) Keys() iter.Seq[[]byte] {
	return func(yield func(key []byte) bool) {
		m.each(false, func(key, _ []byte) bool { return yield(key) })
	}
}

// each goes through the buckets of the table as it is now. The entries of one
// bucket are, in any larger table, those whose hashes end in its number, so that
// growth meanwhile moves none past the loop.
func (m *Map) each(values bool, yield func(key, val []byte) bool) {
	mask := m.table.Load().mask
	var buf []byte
	var ends []int
	for i := uint64(0); i <= mask; i++ {
		buf, ends = buf[:0], ends[:0]
		op, err := m.begin()
		if err != nil {
			return
		}
		m.visit(m.table.Load(), i, mask, func(w word) {
			key, val := m.entry(w)
			buf = append(buf, key...)
			ends = append(ends, len(buf))
			if values {
				buf = append(buf, val...)
			}
			ends = append(ends, len(buf))
		})
		op.End()
		for at, j := 0, 0; j < len(ends); j += 2 {
			k, v := ends[j], ends[j+1]
			if !yield(buf[at:k:k], buf[k:v:v]) {
				return
			}
			at = v
		}
	}
}

// visit has f see the entries whose hashes end in i under mask.
func (m *Map) visit(t *table, i, mask uint64, f func(word)) {
	for j := i; j <= t.mask; j += mask + 1 {
		b := &t.buckets[j]
		ctl := b.lock()
		if ctl&moved != 0 {
			b.unlock(ctl)
			m.visit(t.next.Load(), j, t.mask, f)
			continue
		}
		t.chain(b, ctl, func(words []word) bool {
			for _, w := range words {
				if w != 0 && w&dead == 0 {
					f(w)
				}
			}
			return false
		})
		b.unlock(ctl)
	}
}
