package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// micro is a benchmark of one operation, over and over, by one goroutine on
// entries that stay in the cache: the length of the code, not of the memory.
type micro struct {
	name string
	run  func(b *testing.B, e microEnv)
}

// microEnv is where and how the heap is made.
type microEnv struct {
	dir    string
	domain tidemark.Domain
}

var micros = []micro{
	{"BeginEnd", microBeginEnd},
	{"AppendGet/64", func(b *testing.B, e microEnv) { microGet(b, e, 64) }},
	{"AppendGet/1024", func(b *testing.B, e microEnv) { microGet(b, e, 1024) }},
	{"PutExisting/64", func(b *testing.B, e microEnv) { microPut(b, e, 64) }},
	{"PutExisting/1024", func(b *testing.B, e microEnv) { microPut(b, e, 1024) }},
	{"DeleteInsert/64", func(b *testing.B, e microEnv) { microPair(b, e, 64) }},
	{"DeleteInsert/1024", func(b *testing.B, e microEnv) { microPair(b, e, 1024) }},
	{"SyncIdle", microSync},
	{"PayloadNewDelete/64", func(b *testing.B, e microEnv) { microPayload(b, e, 64) }},
	{"PayloadNewDelete/1024", func(b *testing.B, e microEnv) { microPayload(b, e, 1024) }},
	{"LoadBatch64", microLoad},
}

// runMicro is go test -bench with rounds that take turns, and their medians.
func runMicro(args []string) error {
	c := newCommon("micro")
	rounds := c.Int("rounds", 5, "rounds")
	benchtime := c.String("benchtime", "500ms", "of one benchmark, as for go test")
	pattern := c.String("run", ".", "regular `expression` of the benchmarks to run")
	domain := tidemark.ProcessCrash
	c.Func("domain", "process (the default) or emulated", func(s string) (err error) {
		domain, err = parseDomain(s)
		return err
	})
	if err := c.parse(args); err != nil {
		return err
	}
	re, err := regexp.Compile(*pattern)
	if err != nil {
		return err
	}
	testing.Init()
	if err := flag.Set("test.benchtime", *benchtime); err != nil {
		return err
	}
	if *rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	dir, cleanup, err := c.tempDir()
	if err != nil {
		return err
	}
	defer cleanup()
	rep := c.begin()
	results := map[string]*microResult{}
	for range *rounds {
		for _, m := range micros {
			if !re.MatchString(m.name) {
				continue
			}
			res := testing.Benchmark(func(b *testing.B) { m.run(b, microEnv{dir, domain}) })
			if res.N == 0 {
				return fmt.Errorf("%s failed", m.name)
			}
			r := results[m.name]
			if r == nil {
				r = &microResult{Name: m.name}
				results[m.name] = r
			}
			r.rounds = append(r.rounds, float64(res.T.Nanoseconds())/float64(res.N))
			r.Allocs = max(r.Allocs, res.AllocsPerOp())
			r.Bytes = max(r.Bytes, res.AllocedBytesPerOp())
		}
	}
	fmt.Printf("\nns for one operation: median [min..max] of %d rounds; allocations: most of a round.\n", *rounds)
	t := newTable("operation", "ns", "allocs", "bytes")
	var list []*microResult
	var warn warnings
	for _, m := range micros {
		if r := results[m.name]; r != nil {
			r.Ns = summarize(r.rounds)
			warn.spread(r.Name, r.Ns)
			t.row(r.Name, r.Ns.String(), fmt.Sprint(r.Allocs), fmt.Sprint(r.Bytes))
			list = append(list, r)
		}
	}
	t.flush()
	warn.print()
	rep.Results = list
	return c.finish(rep)
}

type microResult struct {
	rounds []float64
	Name   string  `json:"name"`
	Ns     summary `json:"ns"`
	Allocs int64   `json:"allocs"`
	Bytes  int64   `json:"bytes"`
}

// heap opens a heap that goes away with the benchmark.
func (e microEnv) heap(b *testing.B) *tidemark.Heap {
	dir, err := os.MkdirTemp(e.dir, "micro-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	h, err := tidemark.Open(heapDir(dir, "heap"), &tidemark.Options{Domain: e.domain})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close() })
	return h
}

// hashMap returns a map of 1000 entries, and the key and value of one of them.
func (e microEnv) hashMap(b *testing.B, size int) (m *hashmap.Map, key, val []byte) {
	m, err := hashmap.Open(e.heap(b), "micro", nil)
	if err != nil {
		b.Fatal(err)
	}
	k := newKey()
	val = make([]byte, size)
	for i := range 1000 {
		k.set(uint64(i))
		if err := m.Put(k[:], val); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	return m, k[:], val
}

func microBeginEnd(b *testing.B, e microEnv) {
	h := e.heap(b)
	b.ReportAllocs()
	for b.Loop() {
		h.Begin().End()
	}
}

func microGet(b *testing.B, e microEnv, size int) {
	m, key, val := e.hashMap(b, size)
	buf := make([]byte, 0, len(val))
	for b.Loop() {
		if _, err := m.AppendGet(buf, key); err != nil {
			b.Fatal(err)
		}
	}
}

func microPut(b *testing.B, e microEnv, size int) {
	m, key, val := e.hashMap(b, size)
	for b.Loop() {
		if err := m.Put(key, val); err != nil {
			b.Fatal(err)
		}
	}
}

// microPair is two operations.
func microPair(b *testing.B, e microEnv, size int) {
	m, key, val := e.hashMap(b, size)
	for b.Loop() {
		if ok, err := m.Delete(key); err != nil || !ok {
			b.Fatal(ok, err)
		}
		if ok, err := m.PutIfAbsent(key, val); err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}

func microSync(b *testing.B, e microEnv) {
	h := e.heap(b)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// microPayload makes a payload and deletes it, in one operation.
func microPayload(b *testing.B, e microEnv, size int) {
	h := e.heap(b)
	st, err := h.OpenStructure("micro", "micro")
	if err != nil {
		b.Fatal(err)
	}
	space, val := st.Space(), make([]byte, size)
	b.ReportAllocs()
	for b.Loop() {
		op := h.Begin()
		ref, err := space.New(op, 1, val)
		if err == nil {
			err = space.Delete(op, ref)
		}
		op.End()
		if err != nil {
			b.Fatal(err)
		}
	}
}

// microLoad is what the map workload adds to its operations: a batch of 64, on an
// engine that does nothing.
func microLoad(b *testing.B, _ microEnv) {
	w := load{mix: mixed, keys: 1_000_000, value: 64}.worker(0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.batch(none{}); err != nil {
			b.Fatal(err)
		}
	}
}
