//go:build linux

package tidemark_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

var ctx = context.Background()

// children are what the test binary does when it is started as a child: args,
// and standard input and output to talk to the parent.
var children = map[string]func(args []string) error{}

const childEnv = "TIDEMARK_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := children[role](os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a running copy of the test binary.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t testing.TB, role string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{Cmd: exec.Command(exe, args...)}
	c.Env = append(os.Environ(), childEnv+"="+role)
	c.Stderr = os.Stderr
	c.in, err = c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(out)
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// line returns the next line that the child prints.
func (c *child) line(t testing.TB) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	require.NoError(t, err, s)
	return strings.TrimSpace(s)
}

func (c *child) kill() {
	c.Process.Signal(syscall.SIGKILL)
	c.Wait()
}

// manual are options under which the clock moves only when it is told to.
func manual() *tidemark.Options { return &tidemark.Options{EpochLength: tidemark.Manual} }

func open(t testing.TB, dir string, o *tidemark.Options) *tidemark.Heap {
	t.Helper()
	h, err := tidemark.Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		c, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		h.CloseContext(c)
	})
	return h
}

func openMap(t testing.TB, h *tidemark.Heap, name string) *hashmap.Map {
	t.Helper()
	m, err := hashmap.Open(h, name, nil)
	require.NoError(t, err)
	return m
}

// filled makes a heap with a map "m" of n entries and closes it.
func filled(t testing.TB, n int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "h")
	h := open(t, dir, nil)
	m := openMap(t, h, "m")
	for i := range n {
		require.NoError(t, m.Put(key(i), val(i)))
	}
	require.NoError(t, h.Close())
	return dir
}

func key(i int) []byte { return fmt.Appendf(nil, "key%06d", i) }
func val(i int) []byte { return fmt.Appendf(nil, "value of %d%s", i, strings.Repeat(".", i%200)) }

// checkFilled checks that m holds what filled put there.
func checkFilled(t testing.TB, m *hashmap.Map, n int) {
	t.Helper()
	require.Equal(t, n, m.Len())
	for i := range n {
		v, err := m.Get(key(i))
		if err != nil || string(v) != string(val(i)) {
			require.FailNow(t, "wrong entry", "%s: %q, %v", key(i), v, err)
		}
	}
}

// tree returns name, mode and contents of everything under dir.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		all[rel] = info.Mode().String()
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			all[rel] += "\n" + string(b)
			return err
		}
		return nil
	}))
	return all
}

// sameTree fails without printing whole files.
func sameTree(t testing.TB, want map[string]string, dir string) {
	t.Helper()
	have := tree(t, dir)
	for name := range have {
		if _, ok := want[name]; !ok {
			t.Errorf("%s has appeared in %s", name, dir)
		}
	}
	for name, w := range want {
		if h, ok := have[name]; !ok {
			t.Errorf("%s is gone from %s", name, dir)
		} else if h != w {
			t.Errorf("%s has changed in %s", name, dir)
		}
	}
}

// smallFS mounts a tmpfs of so many MiB.
func smallFS(t testing.TB, mib int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// within fails the test if f takes longer than d; f then goes on.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		require.FailNow(t, "it hangs", "%s takes more than %v", what, d)
	}
}
