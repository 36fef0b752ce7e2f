package crashsim

import (
	"slices"

	"github.com/tidemark-db/tidemark/persist"
)

// note is a write-back, or a deferred store, that its handle has not ordered.
type note struct {
	store bool
	off   persist.Off
	n     int    // write-back
	v     uint64 // store
}

// record is one record of the log: the captured bytes of one write-back, or one
// store. A crash keeps whole records, a prefix of those not durable.
type record struct {
	store    bool
	executed bool // the store is in memory already
	off      persist.Off
	v        uint64
	parts    []part
}

// part is what a record puts on one line.
type part struct {
	ln   uint32
	mask content
	c    content
}

func (p *part) over(c *content) {
	for i, mask := range p.mask {
		c[i] = c[i]&^mask | p.c[i]&mask
	}
}

// redoOrder moves the handle's notes to the log's buffer, with the bytes that
// their ranges hold now. Stores that the log has before a range, but memory not
// yet, show through it: writing back a word just stored must not undo the store.
func (m *Machine) redoOrder(h *handle) {
	for _, n := range h.notes {
		r := record{store: n.store, off: n.off, v: n.v}
		size := 8
		if !n.store {
			size = n.n
			m.absorb(n.off, size)
		}
		r.parts = m.capture(n.off, size)
		if n.store {
			r.parts[0].c[n.off/8%lineWords] = n.v
		} else {
			for i := range m.pending {
				m.pending[i].showThrough(r.parts)
			}
		}
		if len(r.parts) > 0 {
			m.pending = append(m.pending, r)
			m.version++
		}
	}
	h.notes = h.notes[:0]
}

// showThrough puts a store that is not executed yet over captured bytes.
func (r *record) showThrough(parts []part) {
	if !r.store || r.executed {
		return
	}
	for i := range parts {
		if parts[i].ln == r.parts[0].ln {
			r.parts[0].over(&parts[i].c)
		}
	}
}

func (m *Machine) capture(off persist.Off, n int) (parts []part) {
	first, count := persist.Lines(off, n)
	for i := range count {
		p := part{ln: uint32(first/persist.LineSize) + uint32(i)}
		p.c = *m.buf.line(p.ln)
		for j := range p.mask {
			if w := int(p.ln)*lineWords + j; w*8+8 > int(off) && w*8 < int(off)+n {
				p.mask[j] = wordMask(w, off, n)
			}
		}
		parts = append(parts, p)
	}
	return parts
}

// redoSync makes the whole log durable and executes its stores. A dropped one
// only executes them.
func (m *Machine) redoSync(dropped bool) {
	for i := range m.pending {
		if r := &m.pending[i]; !dropped {
			for j := range r.parts {
				m.redoDurable(&r.parts[j])
			}
		}
	}
	for i := range m.pending {
		if r := &m.pending[i]; r.store && !r.executed {
			r.executed = true
			m.execute(r.off, r.v)
		}
	}
	if !dropped && len(m.pending) > 0 {
		m.pending = nil
		m.version++
	}
}

// redoDurable puts a part of a durable record over every age of its line.
func (m *Machine) redoDurable(p *part) {
	l := m.track(p.ln, m.buf.line(p.ln))
	p.over(&l.val)
	for i, mask := range p.mask {
		l.mask[i] |= mask
	}
	ages := l.ages
	l.ages = nil
	for _, a := range ages {
		m.redoAge(p.ln, l, a.c)
	}
}

// redoAge adds an age to a line, unless under the log it is one it had.
func (m *Machine) redoAge(ln uint32, l *line, c content) {
	under := part{mask: l.mask, c: l.val}
	under.over(&c)
	a := age{c, hashLine(ln, &c)}
	if !slices.ContainsFunc(l.ages, func(b age) bool { return a.h == b.h && a.c == b.c }) {
		l.ages = append(l.ages, a)
		m.version++
	}
}

// checkpoint makes the whole memory durable and empties the log.
func (m *Machine) checkpoint() {
	if m.cfg.Flavor != Redo {
		return
	}
	m.redoSync(false)
	clear(m.live)
	m.order = m.order[:0]
	m.version++
}

// Checkpoint makes a Redo machine write its whole memory out and empty its log:
// from then on the log no longer hides plain stores that come early. Other
// flavours ignore it. It is not an event.
func (m *Machine) Checkpoint() {
	defer m.enter().Unlock()
	m.checkpoint()
}
