package crashsim

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/tidemark-db/tidemark/persist"
)

const (
	lineWords = persist.LineSize / 8
	pageWords = 128 // unit of copying: 1 KiB
)

// content is what a line holds.
type content [lineWords]uint64

// buffer is the memory of one machine. known is what the machine last saw in
// it; pages marks those of known that may be other than zero.
type buffer struct {
	raw   []uint64
	words []uint64 // the memory, aligned to a line
	bytes []byte   // the same
	known []uint64
	pages []uint64 // bit set
}

// buffers keeps released ones, zeroed, by size.
var buffers struct {
	sync.Mutex
	free map[int][]*buffer
}

func getBuffer(size int) *buffer {
	buffers.Lock()
	free := buffers.free[size]
	if n := len(free); n > 0 {
		b := free[n-1]
		buffers.free[size] = free[:n-1]
		buffers.Unlock()
		return b
	}
	buffers.Unlock()

	n := size / 8
	b := &buffer{
		raw:   make([]uint64, n+lineWords),
		known: make([]uint64, n),
		pages: make([]uint64, (n/pageWords+63)/64),
	}
	skip := 0
	for uintptr(unsafe.Pointer(&b.raw[skip]))%persist.LineSize != 0 {
		skip++
	}
	b.words = b.raw[skip : skip+n : skip+n]
	// Sound: the bytes of words, which raw keeps reachable.
	b.bytes = unsafe.Slice((*byte)(unsafe.Pointer(&b.words[0])), size)
	return b
}

// put zeroes what may be other than zero and keeps the buffer for later.
func (b *buffer) put(backed int) {
	clear(b.words[:backed/8])
	b.eachPage(func(lo int) { clear(b.known[lo : lo+pageWords]) })
	clear(b.pages)
	buffers.Lock()
	defer buffers.Unlock()
	if buffers.free == nil {
		buffers.free = map[int][]*buffer{}
	}
	if free := buffers.free[len(b.bytes)]; len(free) < 16 {
		buffers.free[len(b.bytes)] = append(free, b)
	}
}

// eachPage visits the first word of every marked page.
func (b *buffer) eachPage(f func(lo int)) {
	for i, set := range b.pages {
		for ; set != 0; set &= set - 1 {
			f((i*64 + bits.TrailingZeros64(set)) * pageWords)
		}
	}
}

func (b *buffer) line(n uint32) *content {
	return (*content)(b.known[int(n)*lineWords:])
}

// setLine sets a line of known content, and returns the change of its hash.
func (b *buffer) setLine(n uint32, c *content) uint64 {
	old := b.line(n)
	delta := hashLine(n, c) - hashLine(n, old)
	*old = *c
	page := int(n) * lineWords / pageWords
	b.pages[page/64] |= 1 << (page % 64)
	return delta
}

// byteMask covers the bytes [lo, hi) of a word, in the little-endian order that
// media has.
func byteMask(lo, hi int) uint64 {
	return ^uint64(0) >> (64 - 8*(hi-lo)) << (8 * lo)
}

// wordMask is the part of word w (counted from offset 0) inside [off, off+n),
// of which it has at least one byte.
func wordMask(w int, off persist.Off, n int) uint64 {
	return byteMask(max(int(off)-w*8, 0), min(int(off)+n-w*8, 8))
}

// absorb looks for changes of [off, off+n) that the machine has not seen yet.
// Each line that changed gets one more age.
func (m *Machine) absorb(off persist.Off, n int) {
	if n <= 0 {
		return
	}
	first, end := int(off)/8, (int(off)+n+7)/8
	for w := first; w < end; {
		ln := uint32(w / lineWords)
		stop := min(end, int(ln+1)*lineWords)
		changed := false
		var c content
		for ; w < stop; w++ {
			mask := wordMask(w, off, n)
			have := m.buf.known[w]
			if v := have&^mask | atomic.LoadUint64(&m.buf.words[w])&mask; v != have {
				if !changed {
					c, changed = *m.buf.line(ln), true
				}
				c[w%lineWords] = v
			}
		}
		if changed {
			m.change(ln, &c)
		}
	}
}

// change gives a line a new volatile content.
func (m *Machine) change(ln uint32, c *content) {
	old := *m.buf.line(ln)
	m.sum += m.buf.setLine(ln, c)
	switch m.cfg.Flavor {
	case Lines:
		l := m.track(ln, &old)
		l.ages = append(l.ages, age{*c, hashLine(ln, c)})
		m.version++
	case Redo:
		m.redoAge(ln, m.track(ln, &old), *c)
	default:
		m.version++
	}
}

// mix spreads a word over all bits.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// hashWord is 0 for a zero word, so that untouched memory costs nothing. The
// hash of an image is the sum over its words.
func hashWord(w int, v uint64) uint64 {
	if v == 0 {
		return 0
	}
	return mix(mix(uint64(w)+0x9e3779b97f4a7c15) + v)
}

func hashLine(n uint32, c *content) (sum uint64) {
	for i, v := range c {
		sum += hashWord(int(n)*lineWords+i, v)
	}
	return sum
}
