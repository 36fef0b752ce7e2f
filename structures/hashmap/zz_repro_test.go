package hashmap_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func zzmap(t *testing.T) (*tidemark.Heap, *hashmap.Map) {
	h, err := tidemark.OpenMem(nil)
	require.NoError(t, err)
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	return h, m
}

func TestZZUpdateInPlace(t *testing.T) {
	_, m := zzmap(t)
	m.Put([]byte("k"), []byte("a"))
	n := 0
	m.Update([]byte("k"), func(old []byte, ok bool) ([]byte, bool) {
		if n++; n > 100 {
			return nil, false
		}
		old[0]++
		return old, true
	})
	t.Log("calls", n)
}

func TestZZClearClose(t *testing.T) {
	h, m := zzmap(t)
	for i := range 1000 {
		m.Put(fmt.Appendf(nil, "%d", i), nil)
	}
	err := h.Do(func(op tidemark.Op) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		h.CloseContext(ctx)
		err := m.In(op).Clear()
		t.Log("clear:", err, "len", m.Len())
		return err
	})
	t.Log(err)
}

func TestZZLen(t *testing.T) {
	_, m := zzmap(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			k := fmt.Appendf(nil, "%d", g)
			for !stop.Load() {
				m.Put(k, nil)
				ch := make(chan int)
				go func() { m.Delete(k); close(ch) }()
				<-ch
			}
		})
	}
	lo, hi := 0, 0
	for range 3000000 {
		n := m.Len()
		lo, hi = min(lo, n), max(hi, n)
	}
	stop.Store(true)
	wg.Wait()
	t.Log(lo, hi)
}

type blank struct {
	A int8
	_ [7]byte
	B int64
}

//go:noinline
func dirty() (s int) {
	var a [100]int64
	for i := range a {
		a[i] = -1
	}
	for i := range a {
		s += int(a[i])
	}
	return s
}

//go:noinline
func mk(a int8, b int64) blank { var x blank; x.A = a; x.B = b; return x }

//go:noinline
func mk2(a int8, b int64) blank { return blank{a, [7]byte{1, 2, 3}, b} }

func TestZZBlank(t *testing.T) {
	c := hashmap.Fixed[blank]()
	dirty()
	x := mk(1, 2)
	b1, _ := c.Append(nil, x)
	dirty()
	y := mk2(1, 2)
	b2, _ := c.Append(nil, y)
	t.Log(x == y, b1, b2)
}

func TestZZTx(t *testing.T) {
	h, _ := zzmap(t)
	tm, err := hashmap.OpenTyped(h, "t", hashmap.Fixed[uint64](), hashmap.Fixed[uint64](), nil)
	require.NoError(t, err)
	for range 3000 {
		tm.Put(1, 2)
	}
	h.Do(func(op tidemark.Op) error {
		x := tm.In(op)
		t.Log("tx get", testing.AllocsPerRun(1000, func() { x.Get(1) }))
		return nil
	})
	t.Log("upd", testing.AllocsPerRun(1000, func() { tm.Update(1, func(o uint64, ok bool) (uint64, bool) { return o + 1, true }) }))
}
