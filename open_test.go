//go:build linux

package tidemark_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/persist"
)

// refused opens dir in each way and demands an error that matches want, names
// the file, and leaves everything under the parent of dir as it was.
func refused(t *testing.T, dir string, want error, says string) {
	t.Helper()
	parent := filepath.Dir(dir)
	before := tree(t, parent)
	for name, f := range map[string]func() error{
		"Open":         func() error { _, err := tidemark.Open(dir, nil); return err },
		"OpenReadOnly": func() error { _, err := tidemark.OpenReadOnly(dir, nil); return err },
		"Verify":       func() error { _, err := tidemark.Verify(ctx, dir, nil); return err },
	} {
		var err error
		within(t, 5*time.Second, name, func() { err = f() })
		require.ErrorIs(t, err, want, name)
		require.ErrorContains(t, err, "tidemark: ", name)
		require.ErrorContains(t, err, dir, name)
		require.ErrorContains(t, err, says, name)
		require.NotContains(t, err.Error(), "tidemark: tidemark:", name)
		sameTree(t, before, parent)
	}
}

func TestOpenWithoutAParentDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "no", "heap")
	for range 2 {
		_, err := tidemark.Open(dir, nil)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, dir)
		require.NoDirExists(t, filepath.Dir(dir))
	}
}

func TestOpenOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o666))
	refused(t, path, syscall.ENOTDIR, "not a directory")
}

func TestOpenReadOnlyOfNothing(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		before := tree(t, filepath.Dir(dir))
		_, err := tidemark.OpenReadOnly(dir, nil)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, dir)
		sameTree(t, before, filepath.Dir(dir))
	}
}

func TestOpenOfForeignFiles(t *testing.T) {
	bolt := make([]byte, 32<<10)
	binary.LittleEndian.PutUint32(bolt[16:], 0xED0CDAED)
	for name, b := range map[string][]byte{
		"text":   []byte(strings.Repeat("All work and no play.\n", 30)),
		"sqlite": append([]byte("SQLite format 3\x00\x10\x00\x01\x01"), make([]byte, 100<<10)...),
		"bolt":   bolt,
		"zeros":  make([]byte, 2*persist.UnitSize),
		"ones":   bytes.Repeat([]byte{0xff}, persist.UnitSize),
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "h")
			require.NoError(t, os.Mkdir(dir, 0o777))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "heap"), b, 0o666))
			refused(t, dir, tidemark.ErrForeign, "heap: magic is")
		})
	}
}

func TestOpenOfTruncatedHeap(t *testing.T) {
	good := filled(t, 3000)
	whole, err := os.ReadFile(filepath.Join(good, "heap"))
	require.NoError(t, err)
	for _, n := range []int{0, 1, 511, 4095, 4096, 4097, persist.UnitSize - 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := copyHeap(t, whole[:n])
			refused(t, dir, tidemark.ErrCorrupt, "heap: offset")
		})
	}
	// Of a closed heap no cut goes unnoticed.
	for name, b := range map[string][]byte{
		"header alone": whole[:persist.UnitSize],
		"half":         whole[:len(whole)/2],
		"minus a unit": whole[:len(whole)-persist.UnitSize],
		"minus 1":      whole[:len(whole)-1],
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, copyHeap(t, b), tidemark.ErrCorrupt, "heap: offset")
		})
	}
	// What a growth that was cut leaves is no damage.
	t.Run("plus a page", func(t *testing.T) {
		dir := copyHeap(t, append(bytes.Clone(whole), make([]byte, 4096)...))
		h := open(t, dir, nil)
		checkFilled(t, openMap(t, h, "m"), 3000)
		require.NoError(t, h.Close())
		rep, err := tidemark.Verify(ctx, dir, nil)
		require.NoError(t, err)
		require.Empty(t, rep.Problems)
	})
}

// copyHeap makes a heap directory of a heap file's bytes.
func copyHeap(t testing.TB, b []byte) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "h")
	require.NoError(t, os.Mkdir(dir, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "heap"), b, 0o666))
	return dir
}

// resum repairs the checksums of both header copies.
func resum(b []byte) {
	for _, at := range []int{0, 0x1000} {
		binary.LittleEndian.PutUint32(b[at+60:], crc32.Checksum(b[at:at+60], persist.Castagnoli))
	}
}

func TestOpenOfOtherFormats(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(filled(t, 10), "heap"))
	require.NoError(t, err)
	for _, c := range []struct {
		at   int
		v    uint32
		says string
	}{
		{8, 0, "format version: have 0, want 1"},
		{8, 2, "format version: have 2, want 1"},
		{8, 1<<32 - 1, "format version: have 4294967295, want 1"},
		{16, 1, "incompatible features: have 1, want 0"},
		{16, 1 << 31, "incompatible features: have 2147483648, want 0"},
	} {
		for copies, name := range []string{"both", "first", "second", "second, first damaged"} {
			t.Run(c.says+" in "+name, func(t *testing.T) {
				b := bytes.Clone(whole)
				for _, at := range []int{0, 0x1000} {
					if copies == 0 || (copies == 1) == (at == 0) {
						binary.LittleEndian.PutUint32(b[at+c.at:], c.v)
					}
				}
				resum(b)
				if copies == 3 {
					b[30] ^= 1
				}
				dir := copyHeap(t, b)
				refused(t, dir, tidemark.ErrFormat, c.says)
				_, err := tidemark.Open(dir, nil)
				var fe *tidemark.FormatError
				require.ErrorAs(t, err, &fe)
			})
		}
	}
	t.Run("compatible features", func(t *testing.T) {
		b := bytes.Clone(whole)
		b[12], b[0x100c] = 7, 7
		resum(b)
		h := open(t, copyHeap(t, b), nil)
		checkFilled(t, openMap(t, h, "m"), 10)
	})
}

func TestOpenOfWhatIsNoFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o666) },
		"directory": func(path string) error { return os.Mkdir(path, 0o777) },
		"device":    func(path string) error { return os.Symlink("/dev/null", path) },
		"socket": func(path string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
		},
	} {
		t.Run(name, func(t *testing.T) {
			base, err := os.MkdirTemp("", "h") // short, for the socket
			require.NoError(t, err)
			defer os.RemoveAll(base)
			dir := filepath.Join(base, "h")
			require.NoError(t, os.Mkdir(dir, 0o777))
			require.NoError(t, put(filepath.Join(dir, "heap")))
			refused(t, dir, tidemark.ErrForeign, "not a regular file")
		})
	}
	t.Run("dangling link", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "h")
		require.NoError(t, os.Mkdir(dir, 0o777))
		require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "heap")))
		refused(t, dir, fs.ErrNotExist, "heap")
	})
	t.Run("lock file is a fifo", func(t *testing.T) {
		dir := filled(t, 1)
		require.NoError(t, os.Remove(filepath.Join(dir, "LOCK")))
		require.NoError(t, unix.Mkfifo(filepath.Join(dir, "LOCK"), 0o666))
		within(t, 5*time.Second, "OpenReadOnly", func() {
			if h, err := tidemark.OpenReadOnly(dir, nil); err == nil {
				h.Close()
			}
		})
	})
}

func TestOpenThroughALinkToTheFile(t *testing.T) {
	good := filled(t, 10)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(good, "heap"), filepath.Join(dir, "heap")))
	h := open(t, dir, nil)
	checkFilled(t, openMap(t, h, "m"), 10)
}

func TestOpenOnAReadOnlyFileSystem(t *testing.T) {
	mnt := smallFS(t, 16)
	dir := filepath.Join(mnt, "h")
	h := open(t, dir, nil)
	require.NoError(t, openMap(t, h, "m").Put(key(0), val(0)))
	require.NoError(t, h.Close())
	if err := unix.Mount("", mnt, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Skipf("remounting read-only: %v", err)
	}
	_, err := tidemark.Open(dir, nil)
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, dir)
	_, err = tidemark.Open(filepath.Join(mnt, "other"), nil)
	require.ErrorIs(t, err, syscall.EROFS)
	h, err = tidemark.OpenReadOnly(dir, nil)
	require.NoError(t, err)
	checkFilled(t, openMap(t, h, "m"), 1)
	require.NoError(t, h.Close())
	rep, err := tidemark.Verify(ctx, dir, nil)
	require.NoError(t, err)
	require.Empty(t, rep.Problems)
}

func TestOpenWithoutPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := filled(t, 1)
	require.NoError(t, os.Chmod(filepath.Join(dir, "heap"), 0))
	refused(t, dir, fs.ErrPermission, "heap")
}

func TestOpenWithOddOptions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	_, err := tidemark.Open(dir, &tidemark.Options{MaxSize: 1})
	require.ErrorContains(t, err, dir)
	_, err = os.Stat(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)

	h := open(t, dir, &tidemark.Options{MaxSize: ^uint64(0), RecoveryWorkers: -3, EpochLength: -time.Hour, LockTimeout: -1})
	require.NoError(t, openMap(t, h, "m").Put(key(0), val(0)))
	require.NoError(t, h.Close())

	_, err = tidemark.Open(dir, &tidemark.Options{MaxSize: 2 * persist.UnitSize})
	require.ErrorIs(t, err, tidemark.ErrNoSpace, "a maximum below the file's size")
	_, err = tidemark.Open(dir, &tidemark.Options{Strategy: tidemark.Transient})
	require.ErrorIs(t, err, tidemark.ErrUnsupported)
	require.ErrorContains(t, err, dir)
	if _, err = tidemark.Open(dir, &tidemark.Options{Domain: tidemark.PowerLoss}); err != nil {
		require.ErrorIs(t, err, tidemark.ErrUnsupported)
		require.ErrorContains(t, err, dir)
		sameTree(t, tree(t, dir), dir)
	}

	h = open(t, dir, nil)
	checkFilled(t, openMap(t, h, "m"), 1)
}

func TestOpenMemOfOddSizes(t *testing.T) {
	for _, max := range []uint64{1, persist.UnitSize, 1 << 20} {
		h, err := tidemark.OpenMem(&tidemark.Options{MaxSize: max})
		if err != nil {
			continue
		}
		if _, err := h.OpenStructure("s", "k"); err != nil {
			require.ErrorIs(t, err, tidemark.ErrNoSpace)
		}
		require.NoError(t, h.Close())
	}
	_, err := tidemark.OpenMem(&tidemark.Options{MaxSize: ^uint64(0)})
	require.Error(t, err)
}

// A creation that was cut leaves a temporary file, of any length, or a directory
// without a heap.
func TestOpenAfterACreationWasCut(t *testing.T) {
	header := persist.NewHeader().Encode()
	for name, put := range map[string]func(dir string) error{
		"empty directory": func(string) error { return nil },
		"lock only":       func(dir string) error { return os.WriteFile(filepath.Join(dir, "LOCK"), nil, 0o666) },
		"empty temp":      func(dir string) error { return os.WriteFile(filepath.Join(dir, "heap.new"), nil, 0o666) },
		"part of temp":    func(dir string) error { return os.WriteFile(filepath.Join(dir, "heap.new"), header[:30], 0o666) },
		"longer temp": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "heap.new"), bytes.Repeat([]byte{0xa5}, 3*persist.UnitSize+5), 0o666)
		},
		"read-only temp": func(dir string) error { return os.WriteFile(filepath.Join(dir, "heap.new"), header, 0o444) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, put(dir))
			h := open(t, dir, nil)
			require.NoError(t, openMap(t, h, "m").Put(key(0), val(0)))
			require.NoError(t, h.Close())
			require.NoFileExists(t, filepath.Join(dir, "heap.new"))
			h = open(t, dir, nil)
			checkFilled(t, openMap(t, h, "m"), 1)
		})
	}
	t.Run("temp beside a heap", func(t *testing.T) {
		dir := filled(t, 10)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "heap.new"), []byte("x"), 0o666))
		h := open(t, dir, nil)
		checkFilled(t, openMap(t, h, "m"), 10)
	})
	t.Run("temp is a link to somebody's file", func(t *testing.T) {
		dir, other := t.TempDir(), filepath.Join(t.TempDir(), "precious")
		require.NoError(t, os.WriteFile(other, []byte("data"), 0o666))
		require.NoError(t, os.Symlink(other, filepath.Join(dir, "heap.new")))
		h := open(t, dir, nil)
		require.NoError(t, h.Close())
		b, err := os.ReadFile(other)
		require.NoError(t, err)
		require.Equal(t, "data", string(b))
		st, err := os.Lstat(filepath.Join(dir, "heap"))
		require.NoError(t, err)
		require.True(t, st.Mode().IsRegular())
	})
	t.Run("temp is a directory", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "heap.new", "x"), 0o777))
		_, err := tidemark.Open(dir, nil)
		require.ErrorContains(t, err, "heap.new")
	})
}

func TestErrorsOfFileSystemsAreKept(t *testing.T) {
	err := error(&tidemark.SpaceError{File: "f", Err: syscall.EDQUOT})
	require.True(t, errors.Is(err, tidemark.ErrNoSpace) && errors.Is(err, syscall.ENOSPC) && errors.Is(err, syscall.EDQUOT))
}
