package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// result is what a command line gave.
type result struct {
	status         int
	stdout, stderr string
}

func tidemarkRun(args ...string) result {
	var out, errs bytes.Buffer
	status := run(context.Background(), args, &out, &errs)
	return result{status, out.String(), errs.String()}
}

type point struct{ X, Y int32 }

var pointType = payload.MustType[point]("point")

const marker = "a value to be found in the heap file"

// fill makes two maps and a structure of another kind.
func fill(t *testing.T, dir string) *tidemark.Heap {
	t.Helper()
	h, err := tidemark.Open(dir, nil)
	require.NoError(t, err)
	users, err := hashmap.Open(h, "users", nil)
	require.NoError(t, err)
	for i := range 300 {
		require.NoError(t, users.Put(fmt.Appendf(nil, "user%03d", i), fmt.Appendf(nil, "<name %d>", i)))
	}
	require.NoError(t, users.Put([]byte("marked"), []byte(marker)))
	require.NoError(t, users.Put(nil, nil))
	blobs, err := hashmap.Open(h, "blobs", nil)
	require.NoError(t, err)
	require.NoError(t, blobs.Put([]byte{0xff, 0}, []byte("text")))
	require.NoError(t, blobs.Put([]byte("key"), []byte{0x80, 0x81}))
	require.NoError(t, blobs.Put([]byte("large"), bytes.Repeat([]byte("L"), 600<<10)))
	points, err := h.OpenStructure("points", "cloud", pointType.Descriptor())
	require.NoError(t, err)
	require.NoError(t, h.Do(func(op tidemark.Op) error {
		_, err := pointType.New(op, points.Space(), point{1, -2})
		return err
	}))
	require.NoError(t, h.Sync(context.Background()))
	return h
}

// newHeap returns the directory of a heap that was closed.
func newHeap(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "h")
	require.NoError(t, fill(t, dir).Close())
	return dir
}

// killedHeap returns a copy of a heap that was open: what a killed process leaves.
func killedHeap(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "h")
	h := fill(t, dir)
	defer h.Close()
	left := filepath.Join(t.TempDir(), "killed")
	require.NoError(t, os.CopyFS(left, os.DirFS(dir)))
	return left
}

// patch changes bytes of the heap file.
func patch(t *testing.T, dir string, change func(b []byte)) {
	t.Helper()
	path := filepath.Join(dir, "heap")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	change(b)
	require.NoError(t, os.WriteFile(path, b, 0o666))
}

// state hashes everything in dir that a command must not change.
func state(t *testing.T, dir string) string {
	t.Helper()
	var s strings.Builder
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		var sum [32]byte
		if st.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(b)
		}
		fmt.Fprintf(&s, "%s %v %d %v %x\n", path, st.Mode(), st.Size(), st.ModTime(), sum)
		return nil
	}))
	return s.String()
}

// everyCommand is each command on dir, of which dump only where it can.
func everyCommand(dir string) [][]string {
	return [][]string{
		{"info", dir}, {"info", "-json", dir}, {"verify", dir}, {"verify", dir, "-json"},
		{"dump", dir, "users"}, {"dump", dir, "blobs"}, {"dump", dir, "points"}, {"dump", dir, "nothing"},
	}
}

func TestNothingChanges(t *testing.T) {
	damaged := killedHeap(t)
	patch(t, damaged, func(b []byte) { b[bytes.Index(b, []byte(marker))]++; b[5]++ })
	for name, dir := range map[string]string{"closed": newHeap(t), "killed": killedHeap(t), "damaged": damaged} {
		t.Run(name, func(t *testing.T) {
			before := state(t, dir)
			for _, args := range everyCommand(dir) {
				tidemarkRun(args...)
				require.Equal(t, before, state(t, dir), args)
			}
		})
	}
}

// A command that finds no heap must not make one.
func TestCannotRun(t *testing.T) {
	empty, foreign := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "heap"), bytes.Repeat([]byte("not a heap. "), 20000), 0o666))
	locked := filepath.Join(t.TempDir(), "h")
	defer fill(t, locked).Close()
	for _, c := range []struct{ name, dir, says string }{
		{"missing", filepath.Join(empty, "missing"), "no such file"},
		{"empty", empty, "no such file"},
		{"foreign", foreign, tidemark.ErrForeign.Error()},
		{"locked", locked, tidemark.ErrLocked.Error()},
		{"file", filepath.Join(foreign, "heap"), "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, args := range everyCommand(c.dir) {
				got := tidemarkRun(args...)
				require.Equal(t, exitFailed, got.status, args)
				require.Empty(t, got.stdout)
				require.Contains(t, got.stderr, c.says)
				require.Regexp(t, `\Atidemark: [^\n]+\n\z`, got.stderr)
			}
		})
	}
	left, err := os.ReadDir(empty)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestUnknownFormat(t *testing.T) {
	dir := newHeap(t)
	patch(t, dir, func(b []byte) {
		for _, at := range []int{0, 0x1000} {
			head := b[at : at+64]
			head[8]++
			binary.LittleEndian.PutUint32(head[60:], checksum(head[:60]))
		}
	})
	for _, args := range everyCommand(dir) {
		got := tidemarkRun(args...)
		require.Equal(t, exitFailed, got.status, args)
		require.Contains(t, got.stderr, tidemark.ErrFormat.Error())
	}
}

func TestCommandLine(t *testing.T) {
	dir := newHeap(t)
	overview := section("")
	require.Contains(t, overview, "tidemark verify [-json] DIR")
	for _, c := range []struct {
		args   string
		status int
		out    string // part of stdout where the status is 0, else of stderr
	}{
		{"", exitFailed, overview},
		{"-h", exitOK, overview},
		{"help", exitOK, overview},
		{"help verify", exitOK, "Each problem is one line"},
		{"verify -h", exitOK, "Each problem is one line"},
		{"info --help", exitOK, "free units"},
		{"help dump", exitOK, "key64"},
		{"help nonsense", exitFailed, overview},
		{"nonsense", exitFailed, `no command "nonsense"`},
		{"info", exitFailed, "usage: tidemark info [-json] DIR"},
		{"info DIR DIR", exitFailed, "2 arguments, want 1"},
		{"info -nonsense DIR", exitFailed, "usage: tidemark info [-json] DIR"},
		{"dump -json DIR users", exitFailed, "usage: tidemark dump DIR NAME"},
		{"dump DIR", exitFailed, "usage: tidemark dump DIR NAME"},
		{"verify -json DIR", exitOK, `"clean": true`},
		{"verify DIR -json", exitOK, `"clean": true`},
		{"verify DIR --json=false", exitOK, "no damage"},
		{"verify -json -- DIR", exitOK, `"clean": true`},
		{"verify -- DIR -json", exitFailed, "2 arguments, want 1"},
		{"dump -- DIR users", exitOK, `"key"`},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			if args[i] == "DIR" {
				args[i] = dir
			}
		}
		got := tidemarkRun(args...)
		require.Equal(t, c.status, got.status, "%s: %s", c.args, got.stderr)
		says, silent := got.stdout, got.stderr
		if c.status != exitOK {
			says, silent = silent, says
		}
		require.Contains(t, says, c.out, c.args)
		require.Empty(t, silent, c.args)
	}
}

// failing takes some bytes and then fails as a closed pipe does.
type failing struct{ left int }

var errPipe = errors.New("pipe is closed")

func (f *failing) Write(b []byte) (int, error) {
	if len(b) > f.left {
		n := f.left
		f.left = 0
		return n, errPipe
	}
	f.left -= len(b)
	return len(b), nil
}

func TestOutputFails(t *testing.T) {
	dir := newHeap(t)
	lines := append(everyCommand(dir)[:7], []string{"help"})
	for _, args := range lines {
		for _, room := range []int{0, 5} {
			var errs bytes.Buffer
			require.Equal(t, exitFailed, run(context.Background(), args, &failing{room}, &errs), args)
			require.Contains(t, errs.String(), errPipe.Error())
		}
	}
}

func TestInterrupted(t *testing.T) {
	dir := newHeap(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, args := range everyCommand(dir)[:7] {
		var out, errs bytes.Buffer
		require.Equal(t, exitFailed, run(ctx, args, &out, &errs), args)
		require.Equal(t, "tidemark: interrupted\n", errs.String(), args)
		require.NotContains(t, out.String(), "no damage")
	}
}
