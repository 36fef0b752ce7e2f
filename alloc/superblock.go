package alloc

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/tidemark-db/tidemark/persist"
)

// superblock is the volatile description of one superblock, or of a unit inside
// one. Its fields are guarded by its pool's mutex; head, space, class and units
// change only while the superblock belongs to no pool. For blocks of 256 bytes and
// more all that is used lies in one cache line.
type superblock struct {
	head   int32 // unit the superblock starts at; 0 where the unit is unused
	space  int32 // index of the owner's Space
	units  int32
	class  uint8
	listed bool  // in its pool's list of superblocks with free blocks
	next   int32 // the following one in that list
	free   int32 // set bits
	hint   int32 // no set bit in words below
	_      int32
	bits   [(maxBits + 63) / 64]uint64
	_      [32]byte
}

var _ [0]struct{} = [unsafe.Sizeof(superblock{}) % 64]struct{}{}

func (sb *superblock) off() persist.Off { return persist.Off(sb.head) * unit }
func (sb *superblock) block(i int) persist.Off {
	return sb.off() + headerSize + persist.Off(i*sb.size())
}

func (sb *superblock) size() int {
	if sb.class == runClass {
		return int(sb.units)*unit - headerSize
	}
	return classes[sb.class].size
}

func (sb *superblock) count() int {
	if sb.class == runClass {
		return 1
	}
	return classes[sb.class].count
}

// indexOf returns which block starts at off, and whether one does.
func (sb *superblock) indexOf(off persist.Off) (int, bool) {
	rel := int(off - sb.off() - headerSize)
	if rel < 0 {
		return 0, false
	}
	if sb.class == runClass {
		return 0, rel == 0
	}
	c := &classes[sb.class]
	i := c.index(rel)
	return i, i < c.count && i*c.size == rel
}

func (sb *superblock) setFree(i int) bool {
	w, b := &sb.bits[i/64], uint64(1)<<(i%64)
	if *w&b != 0 {
		return false
	}
	*w |= b
	sb.free++
	sb.hint = min(sb.hint, int32(i/64))
	return true
}

// takeFree removes up to len(dst) free blocks.
func (sb *superblock) takeFree(dst []persist.Off) (n int) {
	for n < len(dst) && sb.free > 0 {
		w := &sb.bits[sb.hint]
		if *w == 0 {
			sb.hint++
			continue
		}
		i := bits.TrailingZeros64(*w)
		*w &= *w - 1
		sb.free--
		dst[n] = sb.block(int(sb.hint)*64 + i)
		n++
	}
	return n
}

// pool holds the superblocks of one (owner, class) that have free blocks.
type pool struct {
	mu          sync.Mutex
	head        int32 // newest superblock with free blocks; 0 for none
	spare       int32 // how many listed superblocks are wholly free
	superblocks int32 // all of this owner and class
	free        int64 // blocks free in them

	// ready holds blocks that were freed and are not yet marked so: under a
	// steady load they come and go without a look at their superblocks.
	ready []persist.Off
}

// readyBytes and readyBlocks bound what a pool keeps ready.
const (
	readyBytes  = 16 << 20
	readyBlocks = 8192
)

// table finds the superblock of a unit. It grows by chunks, so that entries
// never move; readers take no lock.
type table struct {
	chunks atomic.Pointer[[]*chunk]
}

type chunk [chunkUnits]superblock

const chunkUnits = 64

// at returns the entry of unit u, or nil where there is none.
func (t *table) at(u int) *superblock {
	chunks := *t.chunks.Load()
	if u/chunkUnits >= len(chunks) {
		return nil
	}
	return &chunks[u/chunkUnits][u%chunkUnits]
}

// extend makes entries for units below n. Callers hold the allocator's mutex.
func (t *table) extend(n int) {
	var chunks []*chunk
	if p := t.chunks.Load(); p != nil {
		chunks = *p
	}
	if len(chunks)*chunkUnits >= n && chunks != nil {
		return
	}
	chunks = slices.Clone(chunks)
	for len(chunks)*chunkUnits < n {
		chunks = append(chunks, new(chunk))
	}
	t.chunks.Store(&chunks)
}
