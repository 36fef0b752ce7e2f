package main

import (
	"fmt"
	"testing"

	"github.com/tidemark-db/tidemark"
)

// BenchmarkMicro runs the benchmarks of the micro workload: see micro.go.
func BenchmarkMicro(b *testing.B) {
	c := newCommon("micro")
	dir, cleanup, err := c.tempDir()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cleanup)
	for _, m := range micros {
		b.Run(m.name, func(b *testing.B) { m.run(b, microEnv{dir, tidemark.ProcessCrash}) })
	}
}

func TestKeys(t *testing.T) {
	key := newKey()
	for _, n := range []uint64{maxKeys - 1, 0, 7, 10, 99, 100, 123_456, 1_000_000, 90_807} {
		key.set(n)
		if want := fmt.Sprintf("%032d", n); string(key[:]) != want {
			t.Errorf("key of %d: %s", n, key)
		}
	}
}

// The load must not allocate: collecting that would be charged to the engine.
func TestLoadDoesNotAllocate(t *testing.T) {
	w := load{mix: mixed, keys: 1000, value: 64}.worker(0)
	if n := testing.AllocsPerRun(100, func() { w.batch(none{}) }); n != 0 {
		t.Errorf("%v allocations in a batch", n)
	}
}

// Every engine keeps half of the keys, as the mixes mean it to.
func TestEngines(t *testing.T) {
	for _, kind := range engines {
		if kind.name == "none" {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			e, err := kind.open(setup{dir: heapDir(t.TempDir(), "heap"), entries: 500})
			if err != nil {
				t.Fatal(err)
			}
			defer e.close()
			if err := preload(e, 1000, 64, 1); err != nil {
				t.Fatal(err)
			}
			w := load{mix: mixed, keys: 1000, value: 64}.worker(0)
			var effects uint64
			for range 100 {
				n, err := w.batch(e)
				if err != nil {
					t.Fatal(err)
				}
				effects += n
			}
			if share := float64(effects) / (100 * batch); share < 0.45 || share > 0.55 {
				t.Errorf("%.2f of the operations had an effect", share)
			}
			key, found := newKey(), 0
			for i := range uint64(1000) {
				key.set(i)
				val, ok, err := e.get(nil, key[:])
				if err != nil || ok && len(val) != 64 {
					t.Fatalf("get: %d bytes, %v, %v", len(val), ok, err)
				}
				if ok {
					found++
				}
			}
			if found < 400 || found > 600 {
				t.Errorf("%d of 1000 keys are there", found)
			}
		})
	}
}
