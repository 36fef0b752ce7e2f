package hashmap_test

import (
	"fmt"
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
