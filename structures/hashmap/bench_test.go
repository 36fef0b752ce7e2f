package hashmap_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func benchMap(b testing.TB, n, size int) *hashmap.Map {
	h, err := tidemark.Open(b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close() })
	m, err := hashmap.Open(h, "m", nil)
	if err != nil {
		b.Fatal(err)
	}
	val := make([]byte, size)
	for i := range n {
		if err := m.Put(fmt.Appendf(nil, "%032d", i), val); err != nil {
			b.Fatal(err)
		}
	}
	return m
}

var one = []byte("00000000000000000000000000000001")

func BenchmarkAppendGet(b *testing.B) {
	m := benchMap(b, 1000, 64)
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.AppendGet(buf, one); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutExisting(b *testing.B) {
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := benchMap(b, 1000, size)
			val := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Put(one, val); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDeleteInsert(b *testing.B) {
	m := benchMap(b, 1000, 64)
	val := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		m.Delete(one)
		m.PutIfAbsent(one, val)
	}
}

// BenchmarkMix is the workload of the Montage paper: half of the keys are there;
// lookups, insertions of absent keys and removals.
func BenchmarkMix(b *testing.B) {
	const keys = 1_000_000
	for _, size := range []int{64, 1024} {
		var m *hashmap.Map
		for _, gets := range []int{0, 2, 18} {
			b.Run(fmt.Sprintf("%d/%d:1:1", size, gets), func(b *testing.B) {
				if m == nil {
					h, err := tidemark.Open(heapDir(b), nil)
					if err != nil {
						b.Fatal(err)
					}
					m, _ = hashmap.Open(h, "m", nil)
					var k [32]byte
					val := make([]byte, size)
					for i := uint64(0); i < keys; i += 2 {
						m.Put(key(&k, i), val)
					}
				}
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					var k [32]byte
					val, buf := make([]byte, size), make([]byte, 0, size)
					rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
					for pb.Next() {
						x := rnd.Uint64()
						kb := key(&k, x%keys)
						switch r := int(x>>40) % (gets + 2); r {
						case 0:
							m.PutIfAbsent(kb, val)
						case 1:
							m.Delete(kb)
						default:
							m.AppendGet(buf, kb)
						}
					}
				})
			})
		}
	}
}

func heapDir(b *testing.B) string {
	if dir, err := os.MkdirTemp("/dev/shm", "bench"); err == nil {
		b.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return b.TempDir()
}

func key(k *[32]byte, n uint64) []byte {
	for i := len(k) - 1; i >= 0; i-- {
		k[i] = byte('0' + n%10)
		n /= 10
	}
	return k[:]
}

// BenchmarkRecover opens a heap of a million entries of 1 KB and rebuilds its map.
func BenchmarkRecover(b *testing.B) {
	dir := heapDir(b)
	var m *hashmap.Map
	open := func(workers int) *tidemark.Heap {
		h, err := tidemark.Open(dir, &tidemark.Options{RecoveryWorkers: workers})
		if err != nil {
			b.Fatal(err)
		}
		if m, err = hashmap.Open(h, "m", nil); err != nil {
			b.Fatal(err)
		}
		return h
	}
	h := open(1)
	var k [32]byte
	val := make([]byte, 1024)
	for i := range uint64(1_000_000) {
		if err := m.Put(key(&k, i), val); err != nil {
			b.Fatal(err)
		}
	}
	h.Close()
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			for b.Loop() {
				h := open(workers)
				b.StopTimer()
				h.Close()
				b.StartTimer()
			}
		})
	}
}
