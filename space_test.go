//go:build linux

package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func page(i int) []byte {
	b := make([]byte, 4096)
	copy(b, val(i))
	return b
}

// fill puts pages until an error and returns how many there are.
func fill(m *hashmap.Map, from int) (n int, err error) {
	for n = from; n < 1<<20; n++ {
		if err = m.Put(key(n), page(n)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// full fills a heap, deletes, fills again and reopens it.
func full(dir string, o *tidemark.Options) (err error) {
	h, err := tidemark.Open(dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	m, err := hashmap.Open(h, "m", nil)
	if err != nil {
		return err
	}
	n, err := fill(m, 0)
	var space *tidemark.SpaceError
	if !errors.Is(err, tidemark.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &space) || space.File != h.Path() {
		return fmt.Errorf("after %d pages: %w", n, err)
	}
	if n < 100 || m.Len() != n {
		return fmt.Errorf("full with %d pages, %d counted", n, m.Len())
	}
	if err := h.Err(); err != nil {
		return fmt.Errorf("after no space: %w", err)
	}
	check := func(from int) error {
		for i := from; i < n; i++ {
			if v, err := m.Get(key(i)); err != nil || string(v) != string(page(i)) {
				return fmt.Errorf("page %d of %d: %w", i, n, err)
			}
		}
		return nil
	}
	if err := check(0); err != nil {
		return err
	}
	// A batch that does not fit leaves nothing.
	err = h.Do(func(op tidemark.Op) error {
		for i := range 2000 {
			if err := m.In(op).Put(key(n+i), page(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, tidemark.ErrNoSpace) || m.Len() != n {
		return fmt.Errorf("a batch too large: %d of %d entries, %w", m.Len(), n, err)
	}
	if err := h.Sync(context.Background()); err != nil {
		return err
	}
	// As is.
	if err := h.Close(); err != nil {
		return err
	}
	ro, err := tidemark.OpenReadOnly(dir, nil)
	if err != nil {
		return fmt.Errorf("read-only on a full disk: %w", err)
	}
	if m, err = hashmap.Open(ro, "m", nil); err == nil {
		err = check(0)
	}
	if err = errors.Join(err, ro.Close()); err != nil {
		return err
	}
	if h, err = tidemark.Open(dir, o); err != nil {
		return fmt.Errorf("on a full disk: %w", err)
	}
	if m, err = hashmap.Open(h, "m", nil); err != nil {
		return err
	}
	if err := check(0); err != nil {
		return err
	}
	// Deletes need no space, and make some; so does replacing, one after another.
	for i := range n / 2 {
		if ok, err := m.Delete(key(i)); err != nil || !ok {
			return fmt.Errorf("delete when full: %w", err)
		}
	}
	for i := range n / 2 {
		if err := m.Put(key(i), page(i)); err != nil {
			return fmt.Errorf("put %d of %d after deletes: %w", i, n/2, err)
		}
	}
	if more, err := fill(m, n); !errors.Is(err, tidemark.ErrNoSpace) || more-n > n/50+16 {
		return fmt.Errorf("full with %d pages, then with %d: %w", n, more, err)
	}
	return check(0)
}

func TestFullFileSystem(t *testing.T) {
	mnt := smallFS(t, 8)
	require.NoError(t, full(filepath.Join(mnt, "h"), nil))
}

func TestFullToMaxSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	require.NoError(t, full(dir, &tidemark.Options{MaxSize: 4 << 20}))
	st, err := os.Stat(filepath.Join(dir, "heap"))
	require.NoError(t, err)
	require.LessOrEqual(t, st.Size(), int64(4<<20))
}

func init() {
	children["limited"] = func(args []string) error {
		lim := unix.Rlimit{Cur: 4 << 20, Max: 4 << 20}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &lim); err != nil {
			return err
		}
		err := full(args[0], nil)
		fmt.Println("result:", err)
		return err
	}
	children["limited to nothing"] = func(args []string) error {
		lim := unix.Rlimit{Cur: 4096, Max: 4096}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &lim); err != nil {
			return err
		}
		_, err := tidemark.Open(args[0], nil)
		fmt.Println("no space:", errors.Is(err, tidemark.ErrNoSpace))
		return nil
	}
}

func TestFileSizeLimit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	c := startChild(t, "limited", dir)
	require.Equal(t, "result: <nil>", c.line(t))
	require.NoError(t, c.Wait())

	dir = filepath.Join(t.TempDir(), "h")
	c = startChild(t, "limited to nothing", dir)
	require.Equal(t, "no space: true", c.line(t))
	require.NoError(t, c.Wait())
	require.NoDirExists(t, dir, "a failed Open leaves nothing")
}

// The file system is filled by somebody else while the heap is open, and then
// has nothing left for a heap.
func TestFileSystemFilledByOthers(t *testing.T) {
	mnt := smallFS(t, 8)
	h := open(t, filepath.Join(mnt, "h"), nil)
	m := openMap(t, h, "m")
	for i := range 100 {
		require.NoError(t, m.Put(key(i), page(i)))
	}
	hog, err := os.Create(filepath.Join(mnt, "hog"))
	require.NoError(t, err)
	for err = nil; err == nil; {
		_, err = hog.Write(make([]byte, 4096))
	}
	require.NoError(t, hog.Close())
	n, err := fill(m, 100)
	require.ErrorIs(t, err, tidemark.ErrNoSpace)
	for i := range n {
		v, err := m.Get(key(i))
		require.NoError(t, err)
		require.Equal(t, page(i), v)
	}
	require.NoError(t, h.Sync(ctx))

	before := tree(t, mnt)
	_, err = tidemark.Open(filepath.Join(mnt, "other"), nil)
	require.ErrorIs(t, err, tidemark.ErrNoSpace)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, filepath.Join(mnt, "other"))
	sameTree(t, before, mnt)

	require.NoError(t, os.Remove(hog.Name()))
	more, err := fill(m, n)
	require.ErrorIs(t, err, tidemark.ErrNoSpace)
	require.Greater(t, more, n+500)
	require.NoError(t, h.Close())
}

// Values near the edges of the size classes, and of header forms, survive.
func TestSizesAroundTheEdges(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	var sizes []int
	for _, edge := range []int{16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65535, 64 << 10, 128 << 10, 256 << 10, 260 << 10, 1 << 20} {
		for d := -45; d <= 2; d++ {
			if edge+d >= 0 && (edge < 64<<10 || d%5 == 0) {
				sizes = append(sizes, edge+d)
			}
		}
	}
	content := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i*7 + n)
		}
		return b
	}
	for _, n := range sizes {
		require.NoError(t, m.Put(fmt.Append(nil, n), content(n)))
	}
	check := func() {
		for _, n := range sizes {
			v, err := m.Get(fmt.Append(nil, n))
			require.NoError(t, err)
			require.True(t, string(content(n)) == string(v), n)
		}
	}
	check()
	require.NoError(t, h.Close())
	rep, err := tidemark.Verify(ctx, dir, nil)
	require.NoError(t, err)
	require.Empty(t, rep.Problems)
	h = open(t, dir, nil)
	m = openMap(t, h, "m")
	check()
	for _, n := range sizes {
		_, err := m.Delete(fmt.Append(nil, n))
		require.NoError(t, err)
	}
	require.Zero(t, m.Len())
}

func TestLargeValues(t *testing.T) {
	size := 20 << 20
	if !testing.Short() {
		size = 100 << 20
	}
	dir := t.TempDir()
	h := open(t, dir, &tidemark.Options{MaxSize: 3 * uint64(size)})
	m := openMap(t, h, "m")
	b := make([]byte, size)
	b[0], b[size-1] = 1, 2
	require.NoError(t, m.Put(key(0), b))
	require.ErrorIs(t, m.Put(key(1), make([]byte, 3*size)), tidemark.ErrNoSpace)
	b[0] = 3
	require.NoError(t, m.Put(key(0), b))
	b[0] = 4
	require.NoError(t, m.Put(key(0), b))
	require.ErrorIs(t, m.Put(make([]byte, hashmap.MaxKey+1), nil), tidemark.ErrKeyTooLarge)
	require.NoError(t, m.Put(make([]byte, hashmap.MaxKey), nil))
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	m = openMap(t, h, "m")
	v, err := m.Get(key(0))
	require.NoError(t, err)
	require.True(t, string(b) == string(v))
	require.NoError(t, h.Close())
}

func TestManyKeysInOneOperation(t *testing.T) {
	n := 125000
	if testing.Short() {
		n = 5000
	}
	dir := t.TempDir()
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	batch := func(f func(x hashmap.Tx, i int) error, end error) {
		err := h.Do(func(op tidemark.Op) error {
			for i := range n {
				if err := f(m.In(op), i); err != nil {
					return err
				}
			}
			return end
		})
		require.ErrorIs(t, err, end)
	}
	boom := errors.New("boom")
	put := func(x hashmap.Tx, i int) error { return x.Put(key(i), key(i)) }
	batch(put, boom)
	require.Zero(t, m.Len())
	batch(put, nil)
	require.Equal(t, n, m.Len())
	remove := func(x hashmap.Tx, i int) error {
		if ok, err := x.Delete(key(i)); err != nil || !ok {
			return fmt.Errorf("%d: %v %w", i, ok, err)
		}
		return nil
	}
	batch(remove, boom)
	require.Equal(t, n, m.Len())
	batch(remove, nil)
	require.Zero(t, m.Len())
	batch(put, nil)
	require.NoError(t, h.Close())
	h = open(t, dir, nil)
	require.Equal(t, n, openMap(t, h, "m").Len())
	require.NoError(t, h.Do(func(tidemark.Op) error { return nil }), "an empty one")
}

// Sizes that drift have every unit change its size class again and again; the
// same data must always fit.
func TestDriftingSizesFitAgain(t *testing.T) {
	cycles := 12
	if testing.Short() {
		cycles = 4
	}
	dir := filepath.Join(t.TempDir(), "h")
	var sizes []int64
	for c := range cycles {
		h, err := tidemark.Open(dir, &tidemark.Options{EpochLength: tidemark.DefaultEpochLength / 5, RecoveryWorkers: 1 + c%3})
		require.NoError(t, err)
		m, err := hashmap.Open(h, "m", nil)
		require.NoError(t, err)
		for size := 16; size <= 64<<10; size *= 4 {
			n := min(2000, 2<<20/size)
			for i := range n {
				require.NoError(t, m.Put(key(i), make([]byte, size+i%16)))
			}
			for i := range n {
				if i%7 != 0 || size > 16<<10 {
					_, err := m.Delete(key(i))
					require.NoError(t, err)
				}
			}
			require.NoError(t, h.Sync(ctx))
		}
		n := m.Len()
		require.NoError(t, h.Close())
		h, err = tidemark.Open(dir, nil)
		require.NoError(t, err)
		require.EqualValues(t, n, openMap(t, h, "m").Len())
		require.NoError(t, h.Close())
		st, err := os.Stat(filepath.Join(dir, "heap"))
		require.NoError(t, err)
		sizes = append(sizes, st.Size())
	}
	require.LessOrEqual(t, sizes[cycles-1], sizes[1]+4*persist.UnitSize+1<<20, "%v", sizes)
	rep, err := tidemark.Verify(ctx, dir, nil)
	require.NoError(t, err)
	require.Empty(t, rep.Problems)
	// Moved and copied, it is the same heap.
	require.NoError(t, os.Rename(dir, dir+"2"))
	h := open(t, copyHeap(t, readHeap(t, dir+"2")), nil)
	openMap(t, h, "m")
}
