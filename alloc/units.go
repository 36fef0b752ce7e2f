package alloc

import (
	"sort"

	"github.com/tidemark-db/tidemark/persist"
)

// extent is a run of units that no superblock uses.
type extent struct {
	start, n int
	bare     bool // media may be missing behind it; refill before use
}

// unitPool knows which units are in use. Units at or above frontier were grown
// in this session and never used, so they are zero on media as well; whatever
// lies below is not trusted to be, for a header that never became durable may
// have left blocks behind.
type unitPool struct {
	free     []extent // sorted by start, coalesced, below frontier
	frontier int
}

// take removes n contiguous units from the lowest place they fit.
func (p *unitPool) take(r *persist.Region, n int) (start int, fresh bool, err error) {
	for i := range p.free {
		e := &p.free[i]
		if e.n < n {
			continue
		}
		start = e.start
		if e.bare {
			if err := r.Refill(persist.Off(start)*unit, n*unit); err != nil {
				return 0, false, err
			}
		}
		if e.start, e.n = e.start+n, e.n-n; e.n == 0 {
			p.free = append(p.free[:i], p.free[i+1:]...)
		}
		return start, false, nil
	}
	need := uint64(p.frontier+n) * unit
	if need > r.Size() {
		step := min(max(r.Size()/8, 1<<20), 64<<20)
		if err := r.Grow(min(need+step, max(need, r.Max()))); err != nil {
			if err := r.Grow(need); err != nil {
				return 0, false, err
			}
		}
	}
	start = p.frontier
	p.frontier += n
	return start, true, nil
}

// give returns units, coalescing neighbours.
func (p *unitPool) give(e extent) {
	i := sort.Search(len(p.free), func(i int) bool { return p.free[i].start > e.start })
	p.free = append(p.free, extent{})
	copy(p.free[i+1:], p.free[i:])
	p.free[i] = e
	for _, j := range []int{i + 1, i} {
		if j > 0 && j < len(p.free) && p.free[j-1].bare == p.free[j].bare && p.free[j-1].start+p.free[j-1].n == p.free[j].start {
			p.free[j-1].n += p.free[j].n
			p.free = append(p.free[:j], p.free[j+1:]...)
		}
	}
}

// units returns how many units are free below the frontier.
func (p *unitPool) units() (n int) {
	for _, e := range p.free {
		n += e.n
	}
	return n
}
