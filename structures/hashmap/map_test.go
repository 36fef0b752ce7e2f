package hashmap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func TestBasics(t *testing.T) {
	dir := t.TempDir()
	h, err := tidemark.Open(dir, nil)
	require.NoError(t, err)
	m, err := hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	const n = 20000
	for i := range n {
		require.NoError(t, m.Put(fmt.Appendf(nil, "key%d", i), fmt.Appendf(nil, "val%d", i)))
	}
	require.Equal(t, n, m.Len())
	for i := 0; i < n; i += 2 {
		ok, err := m.Delete(fmt.Appendf(nil, "key%d", i))
		require.NoError(t, err)
		require.True(t, ok)
	}
	boom := errors.New("boom")
	err = h.Do(func(op tidemark.Op) error {
		x := m.In(op)
		require.NoError(t, x.Put([]byte("key1"), []byte("changed")))
		require.NoError(t, x.Put([]byte("key1"), []byte("again")))
		ok, err := x.Delete([]byte("key3"))
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, x.Put([]byte("new"), bytes.Repeat([]byte("x"), 100<<10)))
		require.NoError(t, x.Put([]byte("key3"), []byte("back")))
		return boom
	})
	require.ErrorIs(t, err, boom)
	require.Equal(t, n/2, m.Len())
	require.NoError(t, h.Sync(context.Background()))
	check := func() {
		for i := range n {
			v, err := m.Get(fmt.Appendf(nil, "key%d", i))
			if i%2 == 0 {
				require.ErrorIs(t, err, tidemark.ErrNotFound)
			} else {
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("val%d", i), string(v))
			}
		}
		c := 0
		for k, v := range m.All() {
			require.Equal(t, string(k[3:]), string(v[3:]))
			c++
		}
		require.Equal(t, n/2, c)
	}
	check()
	require.NoError(t, h.Close())
	_, err = m.Get([]byte("key1"))
	require.ErrorIs(t, err, tidemark.ErrClosed)
	h, err = tidemark.Open(dir, nil)
	require.NoError(t, err)
	require.True(t, h.Metrics().Recovery.Clean)
	m, err = hashmap.Open(h, "m", nil)
	require.NoError(t, err)
	check()
	require.NoError(t, h.Close())
}
