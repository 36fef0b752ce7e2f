package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// runMemory measures what a map takes of the Go heap, and of the garbage
// collector's time. Payloads are outside the Go heap, so what tidemark takes is
// its index and the bookkeeping of blocks. xsync's map has keys and values on it.
func runMemory(args []string) error {
	c := newCommon("memory")
	sizes := c.ints("n", "1000000,10000000", "entries")
	value := c.Int("value", 8, "bytes of a value")
	names := c.words("engines", "buffered,xsync", "engines, of buffered and xsync")
	cycles := c.Int("cycles", 5, "collections, of which the best counts")
	if err := c.parse(args); err != nil {
		return err
	}
	if slices.Min(sizes.vals) < 1 || *cycles < 1 {
		return errors.New("-n and -cycles must be at least 1")
	}
	dir, cleanup, err := c.tempDir()
	if err != nil {
		return err
	}
	defer cleanup()
	rep := c.begin()
	var results []memoryResult
	for _, n := range sizes.vals {
		for _, name := range names.vals {
			progress("%s, %d entries", name, n)
			r := memoryResult{Engine: name, N: n}
			switch name {
			case "buffered":
				err = r.measureTidemark(heapDir(dir, "heap"), *value, *cycles)
			case "xsync":
				err = r.measureXsync(*value, *cycles)
			default:
				err = fmt.Errorf("no engine %q", name)
			}
			if err != nil {
				return err
			}
			results = append(results, r)
		}
	}
	fmt.Printf("\nBytes of the Go heap for each entry (keys of %d bytes, values of %d). Collections: best of %d.\n", keySize, *value, *cycles)
	t := newTable("entries", "engine", "grown", "rebuilt: index", "rebuilt: heap", "GC cycle without", "with", "pause without", "with")
	for _, r := range results {
		index, heap := "", ""
		if r.RebuiltIndex > 0 {
			index, heap = fmt.Sprintf("%.1f", r.RebuiltIndex), fmt.Sprintf("%.1f", r.RebuiltHeap)
		}
		t.row(fmt.Sprint(r.N), r.Engine, fmt.Sprintf("%.1f", r.Grown), index, heap,
			r.Without.Cycle.String(), r.With.Cycle.String(), r.Without.Pause.String(), r.With.Pause.String())
	}
	t.flush()
	rep.Results = results
	return c.finish(rep)
}

// memoryResult has bytes for each entry.
type memoryResult struct {
	Engine       string   `json:"engine"`
	N            int      `json:"n"`
	Grown        float64  `json:"grown"`        // after inserting them one by one
	RebuiltIndex float64  `json:"rebuiltIndex"` // by opening the map
	RebuiltHeap  float64  `json:"rebuiltHeap"`  // by opening the heap before
	Without      gcResult `json:"without"`
	With         gcResult `json:"with"`
}

type gcResult struct {
	Cycle time.Duration `json:"cycle"` // of runtime.GC, which waits for the sweep
	Pause time.Duration `json:"pause"` // sum of the cycle's stops of the world
}

func collect(cycles int) (best gcResult) {
	var stats debug.GCStats
	runtime.GC()
	for i := range cycles {
		begin := time.Now()
		runtime.GC()
		took := time.Since(begin)
		debug.ReadGCStats(&stats)
		if i == 0 || took < best.Cycle {
			best.Cycle = took
		}
		if i == 0 || stats.Pause[0] < best.Pause {
			best.Pause = stats.Pause[0]
		}
	}
	return best
}

// heapAlloc returns the bytes of the Go heap that are in use.
func heapAlloc() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held until the first
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc)
}

func (r *memoryResult) per(before, after float64) float64 { return (after - before) / float64(r.N) }

func (r *memoryResult) measureTidemark(dir string, value, cycles int) error {
	r.Without = collect(cycles)
	before := heapAlloc()
	e, err := openBuffered(setup{dir: dir})
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := e.(*tidemarkMap)
	if err := fillAll(e, r.N, value); err != nil {
		return errors.Join(err, t.h.Close())
	}
	r.Grown = r.per(before, heapAlloc())
	r.With = collect(cycles)
	if err := t.h.Close(); err != nil {
		return err
	}
	*t = tidemarkMap{dir: dir}
	return r.measureRebuild(dir)
}

func (r *memoryResult) measureRebuild(dir string) error {
	before := heapAlloc()
	h, err := tidemark.Open(dir, nil)
	if err != nil {
		return err
	}
	defer h.Close()
	opened := heapAlloc()
	m, err := hashmap.Open(h, "bench", nil)
	if err != nil {
		return err
	}
	r.RebuiltHeap, r.RebuiltIndex = r.per(before, opened), r.per(opened, heapAlloc())
	runtime.KeepAlive(m)
	return nil
}

func (r *memoryResult) measureXsync(value, cycles int) error {
	r.Without = collect(cycles)
	before := heapAlloc()
	e, err := openXsync(setup{})
	if err != nil {
		return err
	}
	if err := fillAll(e, r.N, value); err != nil {
		return err
	}
	r.Grown = r.per(before, heapAlloc())
	r.With = collect(cycles)
	runtime.KeepAlive(e)
	return nil
}

// fillAll inserts the keys below n.
func fillAll(e engine, n, value int) error {
	key, val := newKey(), make([]byte, value)
	for i := range n {
		key.set(uint64(i))
		if _, err := e.insert(key[:], val); err != nil {
			return err
		}
	}
	return e.settle()
}
