package alloc

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark/persist"
)

func newAllocator(t testing.TB, max uint64) (*persist.Region, *Allocator) {
	r, err := persist.NewMemory(max)
	require.NoError(t, err)
	a := New(r)
	require.NoError(t, a.Scan(func(e *persist.CorruptError) error { return e }))
	return r, a
}

func TestClassesWasteLessThanAQuarter(t *testing.T) {
	const header = 16 // what the payload layer adds
	for size := 65; size <= 4<<20; size += 1 + size/1000 {
		need := size + header
		have := 0
		if cl := classOf(need); cl == runClass {
			have = (need+headerSize+unit-1)/unit*unit - headerSize
		} else {
			have = classes[cl].size
			if need > have || cl > 0 && classes[cl-1].size >= need {
				t.Fatalf("size %d is not in its smallest class", size)
			}
		}
		if float64(have-need)/float64(have) >= 0.25 {
			t.Fatalf("size %d in a block of %d", size, have)
		}
	}
}

func TestClassGeometry(t *testing.T) {
	for i, c := range classes {
		require.Zero(t, c.size%MinBlock)
		require.LessOrEqual(t, headerSize+c.size*c.count, c.units*unit)
		require.LessOrEqual(t, c.count, maxBits)
		require.Less(t, float64(c.units*unit-c.size*c.count)/float64(c.units*unit), 0.1, "class %d wastes its end", i)
		for n := range c.count {
			if c.index(n*c.size) != n || c.index(n*c.size+c.size-1) != n {
				t.Fatalf("class %d of %d bytes: index of block %d is wrong", i, c.size, n)
			}
		}
	}
	require.Less(t, len(classes), runClass)
}

func TestHeaderFlipsAreFound(t *testing.T) {
	w := encodeHeader(77, 1, 3)
	o, units, cl, damage := decodeHeader(w)
	require.Empty(t, damage)
	require.Equal(t, []any{Owner(77), 1, 3}, []any{o, units, cl})
	for b := range 64 {
		_, _, _, damage := decodeHeader(w ^ 1<<b)
		require.NotEmpty(t, damage, "bit %d", b)
	}
}

func TestUnitsCoalesce(t *testing.T) {
	p := unitPool{frontier: 100}
	order := rand.New(rand.NewPCG(1, 2)).Perm(50)
	for _, u := range order {
		p.give(extent{start: u + 1, n: 1})
	}
	require.Equal(t, []extent{{start: 1, n: 50}}, p.free)
	start, fresh, err := p.take(nil, 7)
	require.NoError(t, err)
	require.False(t, fresh)
	require.Equal(t, 1, start)
	require.Equal(t, 43, p.units())
}

// A block is in one place only, aligned, and apart from every other.
func TestRandomAllocationsNeverOverlap(t *testing.T) {
	r, a := newAllocator(t, 64<<20)
	rnd := rand.New(rand.NewPCG(3, 4))
	caches := []*Cache{new(Cache), new(Cache)}
	spaces := []*Space{a.Space(2), a.Space(3), a.Space(4)}
	type block struct {
		off  persist.Off
		n    int
		mark byte
	}
	var live []block
	check := func(b block) {
		if n := bytes.Count(r.Bytes(b.off, b.n), []byte{b.mark}); n != b.n {
			t.Fatalf("block %#x of %d bytes: %d are another's", b.off, b.n, b.n-n)
		}
	}
	for i := range 30000 {
		if len(live) > 0 && rnd.IntN(100) < 45+i/2000 {
			k := rnd.IntN(len(live))
			b := live[k]
			check(b)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			clear(r.Bytes(b.off, b.n))
			if rnd.IntN(2) == 0 {
				a.Free(caches[rnd.IntN(2)], b.off)
			} else {
				a.FreeBatch([]persist.Off{b.off})
			}
			continue
		}
		size := 1 << rnd.IntN(15)
		if rnd.IntN(200) == 0 {
			size = 1 << 19
		}
		size = size/2 + rnd.IntN(size)
		off, have, err := spaces[rnd.IntN(3)].Alloc(caches[rnd.IntN(2)], size)
		require.NoError(t, err)
		require.GreaterOrEqual(t, have, size)
		require.Zero(t, off%MinBlock)
		n, _, ok := a.BlockSize(off)
		require.True(t, ok)
		require.GreaterOrEqual(t, n, size)
		b := block{off, size, byte(1 + rnd.IntN(255))}
		copy(r.Bytes(off, size), bytes.Repeat([]byte{b.mark}, size))
		live = append(live, b)
	}
	for _, b := range live {
		check(b)
		a.FreeBatch([]persist.Off{b.off})
	}
	for _, c := range caches {
		c.Flush()
	}
	a.Settle()
	for _, c := range a.Stats().Classes {
		require.Equal(t, c.Blocks, c.Free, "%+v", c)
		require.LessOrEqual(t, c.Superblocks, 1, "empty superblocks are kept: %+v", c)
	}
}

// After a restart exactly the blocks judged dead can be allocated, and no live
// one is handed out.
func TestSweepRebuildsFreeSpace(t *testing.T) {
	for _, workers := range []int{1, 3} {
		r, a := newAllocator(t, 16<<20)
		rnd := rand.New(rand.NewPCG(5, 6))
		var c Cache
		s := a.Space(9)
		live := map[persist.Off]int{}
		const liveWord = 0x1234567
		fill := func(a *Allocator, s *Space, c *Cache, size int) (n int) {
			for {
				off, have, err := s.Alloc(c, size)
				if err != nil {
					require.ErrorIs(t, err, persist.ErrNoSpace)
					return n
				}
				if live[off] != 0 {
					t.Fatalf("block %#x is live and was handed out", off)
				}
				live[off] = have
				r.Set(off, liveWord)
				n++
			}
		}
		total := fill(a, s, &c, 1000)
		offs := make([]persist.Off, 0, len(live))
		for off := range live {
			offs = append(offs, off)
		}
		slices.Sort(offs)
		freed := 0
		for _, off := range offs {
			if rnd.IntN(3) == 0 {
				r.Set(off, 0)
				delete(live, off)
				freed++
			}
		}
		b := New(r)
		require.NoError(t, b.Scan(func(e *persist.CorruptError) error { return e }))
		apply, err := b.Sweep(context.Background(), workers, true,
			func(_ Owner, _ persist.Off, w uint64) (Verdict, uint64) {
				if w == liveWord {
					return Live, w
				}
				return Dead, w
			}, nil)
		require.NoError(t, err)
		apply()
		var c2 Cache
		require.Equal(t, freed, fill(b, b.Space(9), &c2, 1000))
		require.Equal(t, total, len(live))
	}
}

func TestDisownFreesUnits(t *testing.T) {
	r, a := newAllocator(t, 4<<20)
	var c Cache
	for _, size := range []int{64, 1000, 300 << 10} {
		_, _, err := a.Space(5).Alloc(&c, size)
		require.NoError(t, err)
	}
	_, _, err := a.Space(6).Alloc(&c, 64)
	require.NoError(t, err)
	b := New(r)
	require.NoError(t, b.Scan(func(e *persist.CorruptError) error { return e }))
	b.Disown(func(o Owner) bool { return o == 6 })
	require.Equal(t, map[Owner]bool{6: true}, b.Owners())
	require.Empty(t, b.Superblocks(5))
	again := New(r)
	require.NoError(t, again.Scan(func(e *persist.CorruptError) error { return e }))
	require.Equal(t, map[Owner]bool{6: true}, again.Owners())
}

func TestDoubleFreePanics(t *testing.T) {
	_, a := newAllocator(t, 4<<20)
	var c Cache
	off, _, err := a.Space(5).Alloc(&c, 64)
	require.NoError(t, err)
	a.FreeBatch([]persist.Off{off, off})
	require.Panics(t, func() { a.Settle() })
}

func TestAllocAllocatesNothing(t *testing.T) {
	_, a := newAllocator(t, 16<<20)
	var c Cache
	s := a.Space(5)
	off, _, _ := s.Alloc(&c, 100)
	a.Free(&c, off)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		off, _, _ := s.Alloc(&c, 100)
		a.Free(&c, off)
	}))
}

// Whatever stands where headers are read, Scan ends, stays in the file and
// reports or accepts.
func FuzzScan(f *testing.F) {
	f.Add(uint64(0), uint64(0), encodeHeader(2, 1, 0))
	f.Add(encodeHeader(2, 3, runClass), encodeHeader(2, 100, runClass), uint64(1))
	f.Add(encodeHeader(MaxOwner, 1<<24-1, runClass), ^uint64(0), encodeHeader(0, 0, 0))
	f.Fuzz(func(t *testing.T, a, b, c uint64) {
		r, err := persist.NewMemory(8 * unit)
		require.NoError(t, err)
		require.NoError(t, r.Grow(8*unit))
		for i, w := range []uint64{a, b, c} {
			r.Set(persist.Off(i+1)*unit, w)
		}
		al := New(r)
		problems := 0
		require.NoError(t, al.Scan(func(e *persist.CorruptError) error { problems++; return nil }))
		apply, err := al.Sweep(context.Background(), 1, true,
			func(_ Owner, _ persist.Off, w uint64) (Verdict, uint64) { return Dead, w }, nil)
		require.NoError(t, err)
		apply()
		require.LessOrEqual(t, problems, 3)
	})
}
