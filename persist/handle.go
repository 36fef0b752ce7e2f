package persist

import (
	"sync/atomic"
	"time"
)

// mode is how a region's handles act, fixed when it is mapped.
type mode uint8

const (
	modeNone  mode = iota // ProcessCrash: nothing to do
	modeLines             // cache-line write-back instructions
	modeSim               // a Machine decides
)

// A Handle issues write-backs, orders, ordered stores and fences for one
// operation at a time. It is handed over, never shared: two goroutines must not
// use it at once. The zero Handle is unusable; see [Region.Handle].
type Handle struct {
	r     *Region
	id    int
	mode  mode
	dirty bool // written back or stored since the last fence
}

// Handle returns a new handle on the region.
func (r *Region) Handle() Handle {
	return Handle{r: r, id: int(r.handles.Add(1)), mode: r.mode}
}

// Elides reports whether write-backs are free of effect on this handle, so that
// callers need not collect ranges for it.
func (h *Handle) Elides() bool { return h.mode == modeNone }

// WriteBack starts moving [off, off+n) to media. It does not wait.
func (h *Handle) WriteBack(off Off, n int) {
	if h.mode != modeNone {
		h.writeBack(off, n)
	}
}

func (h *Handle) writeBack(off Off, n int) {
	first, count := Lines(off, n)
	if count == 0 {
		return
	}
	h.dirty = true
	if h.mode == modeSim {
		h.r.sim.WriteBack(h.id, off, n)
		return
	}
	writeBackLines(h.r.ptr(first, count*LineSize), count)
	h.r.counts.lines.Add(uint64(count))
}

// Order makes what this handle wrote back reach media before any Store executed
// after it by whoever has observed it.
func (h *Handle) Order() {
	switch {
	case h.mode == modeNone || !h.dirty:
	case h.mode == modeSim:
		h.r.sim.Order(h.id)
	default:
		storeFence()
		h.r.counts.orders.Add(1)
	}
}

// Store writes v to the aligned word at off, in the order that Order and Fence
// give. Like a plain store it must be written back to become durable. A domain may
// execute it only then; see the package comment. Until it does, a WriteBack that
// covers the word takes the value stored, not the one in memory.
func (h *Handle) Store(off Off, v uint64) {
	if h.mode == modeSim {
		h.dirty = true
		h.r.sim.Store(h.id, off, v)
		return
	}
	StoreWord(h.r.Word(off), v)
}

// Fence returns once everything this handle wrote back is durable.
// Its error matches ErrDurability and is final: nothing that the fence was to
// cover may be published.
func (h *Handle) Fence() error {
	switch {
	case h.mode == modeNone:
		return nil
	case h.mode == modeSim:
		h.dirty = false
		return h.r.sim.Fence(h.id)
	}
	h.dirty = false
	drainFence()
	if d := h.r.latency; d > 0 {
		for end := time.Now().Add(d); time.Now().Before(end); {
		}
	}
	h.r.counts.fences.Add(1)
	return nil
}

// Counts are totals of a region since it was mapped.
type Counts struct {
	Lines  uint64 `json:"lines"`  // cache lines written back
	Orders uint64 `json:"orders"` // orders that had something to order
	Fences uint64 `json:"fences"` // fences
}

type counts struct{ lines, orders, fences atomic.Uint64 }

// Counts returns the region's totals; all are 0 in ProcessCrash, which needs none.
func (r *Region) Counts() Counts {
	return Counts{r.counts.lines.Load(), r.counts.orders.Load(), r.counts.fences.Load()}
}
