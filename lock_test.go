//go:build linux

package tidemark_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func init() {
	// hold opens a heap and holds it until its input ends.
	children["hold"] = func(args []string) error {
		h, err := tidemark.Open(args[0], nil)
		if err != nil {
			return err
		}
		fmt.Println("open")
		io.Copy(io.Discard, os.Stdin)
		return h.Close()
	}
	// try opens a heap and closes it.
	children["try"] = func(args []string) error {
		h, err := tidemark.Open(args[0], nil)
		if errors.Is(err, tidemark.ErrLocked) {
			fmt.Println("locked")
			return nil
		} else if err != nil {
			return err
		}
		fmt.Println("open")
		return h.Close()
	}
}

func TestHeapHeldByAnotherProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	c := startChild(t, "hold", dir)
	require.Equal(t, "open", c.line(t))
	before := tree(t, dir)
	for _, f := range []func(string, *tidemark.Options) (*tidemark.Heap, error){tidemark.Open, tidemark.OpenReadOnly} {
		_, err := f(dir, nil)
		require.ErrorIs(t, err, tidemark.ErrLocked)
		require.ErrorContains(t, err, dir)
	}
	_, err := tidemark.Verify(ctx, dir, nil)
	require.ErrorIs(t, err, tidemark.ErrLocked)
	sameTree(t, before, dir)

	start := time.Now()
	_, err = tidemark.Open(dir, &tidemark.Options{LockTimeout: 60 * time.Millisecond})
	require.ErrorIs(t, err, tidemark.ErrLocked)
	require.GreaterOrEqual(t, time.Since(start), 60*time.Millisecond)

	got := make(chan error, 1)
	go func() {
		h, err := tidemark.Open(dir, &tidemark.Options{LockTimeout: 10 * time.Second})
		if err == nil {
			err = h.Close()
		}
		got <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.Empty(t, got)
	c.in.Close()
	require.NoError(t, c.Wait())
	require.NoError(t, <-got)
}

func TestLockIsFreeAfterKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	for range 3 {
		c := startChild(t, "hold", dir)
		require.Equal(t, "open", c.line(t))
		c.kill()
		h, err := tidemark.Open(dir, nil)
		require.NoError(t, err)
		require.NoError(t, h.Close())
	}
}

// A heap that is open is refused under all its names, and the refusal takes no
// lock away from the first opener.
func TestHeapHeldUnderAnotherName(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "h")
	h := open(t, dir, manual())
	m := openMap(t, h, "m")
	t.Chdir(base)
	require.NoError(t, os.Symlink(dir, "dirlink"))
	require.NoError(t, os.Mkdir("filelink", 0o777))
	require.NoError(t, os.Symlink(filepath.Join(dir, "heap"), "filelink/heap"))
	require.NoError(t, os.Mkdir("hardlink", 0o777))
	require.NoError(t, os.Link(filepath.Join(dir, "heap"), "hardlink/heap"))
	require.NoError(t, os.Mkdir("locklink", 0o777))
	require.NoError(t, os.Link(filepath.Join(dir, "heap"), "locklink/heap"))
	require.NoError(t, os.Link(filepath.Join(dir, "LOCK"), "locklink/LOCK"))
	before := tree(t, base)
	for _, name := range []string{dir, "h", "./h/", "../" + filepath.Base(base) + "/h", "dirlink", "filelink", "hardlink", "locklink"} {
		for what, f := range map[string]func(string, *tidemark.Options) (*tidemark.Heap, error){"write": tidemark.Open, "read": tidemark.OpenReadOnly} {
			_, err := f(name, nil)
			require.ErrorIs(t, err, tidemark.ErrLocked, "%s %s", name, what)
		}
	}
	sameTree(t, before, base)
	c := startChild(t, "try", dir)
	require.Equal(t, "locked", c.line(t))
	require.NoError(t, m.Put(key(0), val(0)))
	require.NoError(t, h.Close())
	c = startChild(t, "try", "hardlink")
	require.Equal(t, "open", c.line(t))
}

func TestReadersShareTheLock(t *testing.T) {
	dir := filled(t, 5)
	a, err := tidemark.OpenReadOnly(dir, nil)
	require.NoError(t, err)
	b, err := tidemark.OpenReadOnly(dir, nil)
	require.NoError(t, err)
	checkFilled(t, openMap(t, a, "m"), 5)
	require.NoError(t, a.Close())
	_, err = tidemark.Open(dir, nil)
	require.ErrorIs(t, err, tidemark.ErrLocked)
	checkFilled(t, openMap(t, b, "m"), 5)
	require.NoError(t, b.Close())
	open(t, dir, nil)
}

func TestRacingOpenersHaveOneWinner(t *testing.T) {
	for round := range 20 {
		dir := filepath.Join(t.TempDir(), "h")
		var won atomic.Pointer[tidemark.Heap]
		var wins, locked atomic.Int32
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 16 {
			wg.Go(func() {
				<-start
				h, err := tidemark.Open(dir, nil)
				switch {
				case err == nil:
					wins.Add(1)
					won.Store(h)
				case errors.Is(err, tidemark.ErrLocked):
					locked.Add(1)
				default:
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		close(start)
		wg.Wait()
		require.EqualValues(t, 1, wins.Load())
		require.EqualValues(t, 15, locked.Load())
		require.NoError(t, won.Load().Close())
	}
}

// Openers that wait and openers that fail, and remove what they made, leave each
// other's heaps alone.
func TestOpenersThatFailAmongOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	var wg sync.WaitGroup
	var puts atomic.Int64
	for g := range 4 {
		wg.Go(func() {
			for i := range 15 {
				o := &tidemark.Options{LockTimeout: 20 * time.Second}
				if i%2 == 1 {
					o.Domain = tidemark.PowerLoss // refused on most file systems
				}
				h, err := tidemark.Open(dir, o)
				if err != nil {
					// A directory that somebody else has just removed is an error, too.
					if !errors.Is(err, tidemark.ErrUnsupported) && !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%v", err)
					}
					continue
				}
				m, err := hashmap.Open(h, "m", nil)
				if err == nil {
					err = m.Put(key(g*100+i), val(i))
				}
				if err == nil {
					puts.Add(1)
				}
				if err = errors.Join(err, h.Close()); err != nil {
					t.Errorf("%v", err)
				}
			}
		})
	}
	wg.Wait()
	h := open(t, dir, nil)
	require.EqualValues(t, puts.Load(), openMap(t, h, "m").Len())
}

func TestChildProcessesDoNotHoldTheLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	h := open(t, dir, nil)
	sleep := exec.Command("sleep", "60")
	require.NoError(t, sleep.Start())
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	require.NoError(t, h.Close())
	c := startChild(t, "try", dir)
	require.Equal(t, "open", c.line(t))
	require.NoError(t, c.Wait())
	h, err := tidemark.Open(dir, nil)
	require.NoError(t, err)
	require.NoError(t, h.Close())
}
