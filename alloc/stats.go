package alloc

import (
	"cmp"
	"slices"
)

// ClassStats counts the superblocks of one owner and size class.
type ClassStats struct {
	Owner       Owner `json:"owner"`
	BlockSize   int   `json:"blockSize"` // 0 stands for runs of whole units
	Superblocks int   `json:"superblocks"`
	Bytes       int64 `json:"bytes"`     // of whole superblocks
	Blocks      int64 `json:"blocks"`    // places
	Free        int64 `json:"free"`      // places not in use; those in callers' caches count as used
	FreeBytes   int64 `json:"freeBytes"` // of free places
}

// Stats is the occupancy of a region.
type Stats struct {
	Classes   []ClassStats `json:"classes"`   // by owner, then block size, runs last
	FreeUnits int          `json:"freeUnits"` // 64 KiB units of the file that no superblock uses
}

// Stats returns the present occupancy.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	st := Stats{FreeUnits: a.pool.units() + int(a.r.Size()/unit) - a.pool.frontier}
	owners := make([]*Space, 0, len(a.byID))
	for _, s := range a.byID {
		owners = append(owners, s)
	}
	slices.SortFunc(owners, func(a, b *Space) int { return cmp.Compare(a.id, b.id) })
	runs := make([]runStats, len(owners))
	for i, s := range owners {
		runs[i] = s.runs
	}
	a.mu.Unlock()

	for i, s := range owners {
		for cl := range s.pools {
			k, p := &classes[cl], &s.pools[cl]
			p.mu.Lock()
			n, free := int(p.superblocks), p.free+int64(len(p.ready))
			p.mu.Unlock()
			if n > 0 {
				st.Classes = append(st.Classes, ClassStats{
					Owner: s.id, BlockSize: k.size, Superblocks: n, Bytes: int64(n*k.units) * unit,
					Blocks: int64(n * k.count), Free: free, FreeBytes: free * int64(k.size),
				})
			}
		}
		if r := runs[i]; r.runs > 0 {
			st.Classes = append(st.Classes, ClassStats{
				Owner: s.id, Superblocks: r.runs, Bytes: int64(r.units) * unit, Blocks: int64(r.runs),
			})
		}
	}
	return st
}
