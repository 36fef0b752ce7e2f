package alloc

import (
	"sort"

	"github.com/tidemark-db/tidemark/persist"
)

const (
	unit       = persist.UnitSize
	headerSize = persist.LineSize

	// MinBlock is the smallest block. Block sizes are multiples of 32 (A4).
	MinBlock = 32
	// maxBits bounds the blocks of a superblock.
	maxBits = (unit - headerSize) / MinBlock

	runClass = 255 // a run of whole units that holds one large block
)

// class is one size class. A superblock of it takes units units and holds count
// blocks of size bytes.
type class struct {
	size, units, count int
	inverse            uint64 // 2^44/size, rounded up: divides offsets exactly while offset*size < 2^44
	cache              int    // blocks a Cache holds
}

// classes grow by an eighth each doubling, so that a block wastes less than a
// quarter of itself. Each takes the fewest units that waste at most a tenth at
// the superblock's end, and is then stretched to use that end.
var classes = func() []class {
	var cs []class
	add := func(want int) {
		units := 1
		for want*((units*unit-headerSize)/want) < (units*unit-headerSize)*9/10 {
			units++
		}
		count := (units*unit - headerSize) / want
		size := (units*unit - headerSize) / count &^ (MinBlock - 1)
		if len(cs) > 0 && size <= cs[len(cs)-1].size {
			return
		}
		cs = append(cs, class{
			size: size, units: units, count: count,
			inverse: (1<<44 + uint64(size) - 1) / uint64(size),
			cache:   min(32, 32<<10/size),
		})
	}
	for size := MinBlock; size < 256; size += MinBlock {
		add(size)
	}
	for base := 256; base < 256<<10; base *= 2 {
		for i := 0; i < 8; i++ {
			add(base + i*base/8)
		}
	}
	add(256 << 10)
	return cs
}()

// MaxClass is the size of the largest class; larger blocks are runs of units.
var MaxClass = classes[len(classes)-1].size

// classTable maps (size+31)/32 to a class for the sizes met most.
var classTable = func() (t [1024]uint8) {
	for i := range t {
		t[i] = uint8(findClass(i * MinBlock))
	}
	return t
}()

func findClass(size int) int {
	return sort.Search(len(classes), func(i int) bool { return classes[i].size >= size })
}

// classOf returns the class for size bytes; runClass beyond the largest.
func classOf(size int) int {
	switch i := (size + MinBlock - 1) / MinBlock; {
	case i < len(classTable):
		return int(classTable[i])
	case size > MaxClass:
		return runClass
	}
	return findClass(size)
}

// index returns which block of a superblock of class c the offset rel (from the
// first block) lies in.
func (c *class) index(rel int) int { return int(uint64(rel) * c.inverse >> 44) }

// ClassInfo describes a size class, for documentation and tools.
type ClassInfo struct{ BlockSize, Units, Count int }

// Classes returns the size classes by number. Larger blocks are runs.
func Classes() []ClassInfo {
	list := make([]ClassInfo, len(classes))
	for i, c := range classes {
		list[i] = ClassInfo{c.size, c.units, c.count}
	}
	return list
}
