package hashmap

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark/payload"
)

// word is an entry of a bucket; 0 is an empty place.
//
//	bits 0..39   payload's offset / 16
//	bit  40      pending: an operation that has not ended changed it (H3)
//	bit  41      dead: that operation deleted it
//	bits 42..63  high bits of the key's hash
type word uint64

const (
	offBits = 40
	pending = word(1) << 40
	dead    = word(1) << 41
	flags   = pending | dead
	tagMask = ^word(1<<42 - 1)
)

func makeWord(h uint64, ref payload.Ref) word {
	return word(h)&tagMask | word(ref>>4)
}

func (w word) ref() payload.Ref { return payload.Ref(w&(1<<offBits-1)) << 4 }

// A bucket is one cache line. Its fields but ctl are guarded by its lock.
type bucket struct {
	ctl   atomic.Uint64
	words [bucketWords]word // the last is the number of an overflow bucket, if chained
}

const bucketWords = 7

// ctl is stamp<<16 | flags: the newest epoch of an update made under the lock (H2).
const (
	locked  = 1 << 0
	moved   = 1 << 1 // its entries are in the next table
	chained = 1 << 2 // continues in an overflow bucket

	stampShift = 16
)

// lock returns ctl as it was, without the lock bit.
func (b *bucket) lock() uint64 {
	for n := 0; ; n++ {
		if c := b.ctl.Load(); c&locked == 0 && b.ctl.CompareAndSwap(c, c|locked) {
			return c
		}
		pause(n)
	}
}

// unlock stores ctl.
func (b *bucket) unlock(ctl uint64) { b.ctl.Store(ctl) }

func stamped(ctl, epoch uint64) uint64 { return ctl&(1<<stampShift-1) | epoch<<stampShift }

// pause lets the holder of what is waited for run.
func pause(n int) {
	switch {
	case n < 4:
	case n < 100:
		runtime.Gosched()
	default:
		time.Sleep(min(time.Duration(n)*time.Microsecond, time.Millisecond))
	}
}

// table is one size of the index.
type table struct {
	buckets []bucket // a power of two
	mask    uint64
	over    *overflow

	// While growing:
	next   atomic.Pointer[table]
	cursor atomic.Uint64 // next bucket that a writer should move
	left   atomic.Int64  // buckets not yet moved
}

func newTable(n int, over *overflow) *table {
	t := &table{buckets: make([]bucket, n), mask: uint64(n - 1), over: over}
	t.left.Store(int64(n))
	return t
}

// fullLoad is the mean of entries a bucket at which a table grows.
const fullLoad = 5.25

// tableSize returns how many buckets hold n entries.
func tableSize(n int64) int {
	size := 8
	for float64(n) > fullLoad*float64(size) {
		size *= 2
	}
	return size
}

// overflow holds buckets that continue others. Numbers start at 1.
type overflow struct {
	chunks atomic.Pointer[[]*[overChunk]bucket]
	mu     sync.Mutex
	free   []uint32
	used   uint32
}

const overChunk = 64

func newOverflow() *overflow {
	o := &overflow{}
	o.chunks.Store(&[]*[overChunk]bucket{})
	return o
}

func (o *overflow) at(n word) *bucket {
	return &(*o.chunks.Load())[(n-1)/overChunk][(n-1)%overChunk]
}

// take returns the number of an empty bucket.
func (o *overflow) take() word {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := len(o.free) - 1; i >= 0 {
		n := o.free[i]
		o.free = o.free[:i]
		return word(n)
	}
	if old := *o.chunks.Load(); int(o.used) == len(old)*overChunk {
		all := append(old[:len(old):len(old)], new([overChunk]bucket))
		o.chunks.Store(&all)
	}
	o.used++
	return word(o.used)
}

func (o *overflow) give(n word) {
	*o.at(n) = bucket{}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.free = append(o.free, uint32(n))
}

// chain walks a locked bucket and what continues it: f sees each part's words,
// without the link, and stops the walk by returning true.
func (t *table) chain(b *bucket, ctl uint64, f func(words []word) bool) {
	for ctl&chained != 0 {
		if f(b.words[:bucketWords-1]) {
			return
		}
		b = t.over.at(b.words[bucketWords-1])
		ctl = b.ctl.Load()
	}
	f(b.words[:])
}

// add puts w into a locked bucket and returns the new ctl, and whether the
// bucket was full.
func (t *table) add(b *bucket, ctl uint64, w word) (uint64, bool) {
	var place *word
	last, lastCtl := b, ctl
	for {
		part := last.words[:]
		if lastCtl&chained != 0 {
			part = part[:bucketWords-1]
		}
		for i := range part {
			if part[i] == 0 {
				place = &part[i]
				break
			}
		}
		if place != nil || lastCtl&chained == 0 {
			break
		}
		last = t.over.at(last.words[bucketWords-1])
		lastCtl = last.ctl.Load()
	}
	if place != nil {
		*place = w
		return ctl, last != b
	}
	n := t.over.take()
	more := t.over.at(n)
	more.words[0], more.words[1] = last.words[bucketWords-1], w
	last.words[bucketWords-1] = n
	if last == b {
		ctl |= chained
	} else {
		last.ctl.Store(lastCtl | chained)
	}
	return ctl, true
}

// empty forgets all words of a locked bucket, and returns the new ctl.
func (t *table) empty(b *bucket, ctl uint64) uint64 {
	part, partCtl := b, ctl
	for partCtl&chained != 0 {
		n := part.words[bucketWords-1]
		part = t.over.at(n)
		partCtl = part.ctl.Load()
		defer t.over.give(n)
	}
	clear(b.words[:])
	return ctl &^ chained
}
