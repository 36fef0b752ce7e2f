package crashsim

import (
	"slices"

	"github.com/tidemark-db/tidemark/persist"
)

// age is one content of a line, with its hash.
type age struct {
	c content
	h uint64
}

// line is what is not certain about one line.
//
// On Lines, ages are the contents since the durable one, oldest first; the
// first of them is the durable one and has number base. A crash keeps any.
//
// On Redo, ages are the distinct contents that the file can have, each already
// under the durable log, which forces the bytes of mask to those of val.
type line struct {
	ages []age
	base int
	mask content // 0xff for every byte that the durable log covers
	val  content
}

// handle is what one handle asked for since its last order.
type handle struct {
	marks map[uint32]mark // Lines
	notes []note          // Redo
}

// mark is how much of a line a handle wrote back: everything up to the age of
// that number. The line is named too, since it may have been forgotten, and
// begun again, in between.
type mark struct {
	l  *line
	at int
}

// track returns the line's uncertain part, beginning it with its content.
func (m *Machine) track(ln uint32, c *content) *line {
	l := m.live[ln]
	if l == nil {
		l = &line{ages: []age{{*c, hashLine(ln, c)}}}
		m.live[ln] = l
		at, _ := slices.BinarySearch(m.order, ln)
		m.order = slices.Insert(m.order, at, ln)
	}
	return l
}

// forget makes the line's image its known content.
func (m *Machine) forget(ln uint32) {
	delete(m.live, ln)
	if at, ok := slices.BinarySearch(m.order, ln); ok {
		m.order = slices.Delete(m.order, at, at+1)
	}
}

func (m *Machine) linesWriteBack(h *handle, off persist.Off, n int) {
	first, count := persist.Lines(off, n)
	for i := range count {
		ln := uint32(first/persist.LineSize) + uint32(i)
		if l := m.live[ln]; l != nil {
			if h.marks == nil {
				h.marks = map[uint32]mark{}
			}
			h.marks[ln] = mark{l, l.base + len(l.ages) - 1}
		}
	}
}

// linesOrder makes what the handle marked durable. An order only promises that
// it becomes durable before what is stored next; taking effect at once is the
// same, since a crash just before the order covers the images in which it did
// not, and no later store is in them.
func (m *Machine) linesOrder(h *handle) {
	for ln, k := range h.marks {
		l := m.live[ln]
		if l != k.l || k.at <= l.base {
			continue
		}
		l.ages = slices.Delete(l.ages, 0, k.at-l.base)
		l.base = k.at
		if len(l.ages) == 1 {
			m.forget(ln)
		}
		m.version++
	}
	clear(h.marks)
}
