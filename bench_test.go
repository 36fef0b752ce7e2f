package tidemark_test

import (
	"context"
	"testing"

	"github.com/tidemark-db/tidemark"
)

func benchHeap(b testing.TB, o *tidemark.Options) *tidemark.Heap {
	h, err := tidemark.Open(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close() })
	return h
}

func BenchmarkBeginEnd(b *testing.B) {
	h := benchHeap(b, nil)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h.Begin().End()
		}
	})
}

func BenchmarkSyncIdle(b *testing.B) {
	h := benchHeap(b, nil)
	ctx := context.Background()
	for b.Loop() {
		if err := h.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
