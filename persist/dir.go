package persist

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A heap is a directory with these files.
const (
	heapFile = "heap" // the mapped region
	lockFile = "LOCK" // locked with flock while the heap is open
	tempFile = "heap.new"
)

// Config says how to open a heap directory. The zero value works.
type Config struct {
	Domain      Domain
	MaxSize     uint64        // upper bound of the heap file; 0 means 1 TiB (1 GiB on 32-bit systems)
	ReadOnly    bool          // map privately, change nothing
	LockTimeout time.Duration // how long to wait for another opener; 0 fails at once
	Latency     time.Duration // added to each fence of the Emulated domain
	// Warn is told of damage that was healed or worked around. nil drops it.
	Warn func(msg string, err error)
}

const defaultMaxSize = 1 << min(40, 30+(^uint(0)>>63)*10)

// OpenDir locks and maps the heap in dir, creating it where there is none. The
// parent of dir must exist.
//
// Crash points of a creation: the heap file is filled under another name,
// synced, and renamed; before the rename there is no heap, after it a whole
// one. A left-over temporary file is overwritten by the next creation.
func OpenDir(dir string, cfg Config) (_ *Region, err error) {
	if cfg.MaxSize == 0 {
		cfg.MaxSize = defaultMaxSize
	}
	if cfg.MaxSize = cfg.MaxSize &^ (UnitSize - 1); cfg.MaxSize < 2*UnitSize {
		return nil, fmt.Errorf("tidemark: %s: a maximum of %d bytes is less than two units of %d", dir, cfg.MaxSize, UnitSize)
	}
	r := &Region{path: filepath.Join(dir, heapFile), readOnly: cfg.ReadOnly, max: cfg.MaxSize, domain: cfg.Domain, latency: cfg.Latency}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if err := r.openLock(dir, cfg); err != nil {
		return nil, err
	}
	if !cfg.ReadOnly {
		if err := createHeap(dir, r.path); err != nil {
			return nil, err
		}
	}
	if err := r.openFile(cfg); err != nil {
		return nil, err
	}
	if err := r.mapFile(); err != nil {
		return nil, err
	}
	return r, r.readHeader()
}

// openLock takes the directory's lock: exclusive, or shared for reading.
func (r *Region) openLock(dir string, cfg Config) error {
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return fmt.Errorf("tidemark: %s: %w", dir, errors.Join(fs.ErrInvalid, errors.New("not a directory")))
	} else if errors.Is(err, fs.ErrNotExist) && !cfg.ReadOnly {
		if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("tidemark: %w", err)
		}
		if err := syncDir(filepath.Dir(filepath.Clean(dir))); err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("tidemark: %w", err)
	}
	flag := os.O_RDWR | os.O_CREATE
	if cfg.ReadOnly {
		flag = os.O_RDONLY
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), flag, 0o666)
	if cfg.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		return nil // a copy of a heap without its lock file: nobody writes to it
	} else if err != nil {
		return fmt.Errorf("tidemark: %w", err)
	}
	r.lock = f
	deadline := time.Now().Add(cfg.LockTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		switch err := lockFD(f, !cfg.ReadOnly); {
		case err == nil:
			return nil
		case !errors.Is(err, ErrLocked):
			return fmt.Errorf("tidemark: %s: %w", f.Name(), err)
		case time.Now().After(deadline):
			return fmt.Errorf("%w: %s is held by another opener", ErrLocked, f.Name())
		}
		time.Sleep(wait)
	}
}

// createHeap makes a heap file holding only a header, if there is none.
func createHeap(dir, path string) error {
	if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return wrap(err)
	}
	temp := filepath.Join(dir, tempFile)
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return wrap(err)
	}
	h := NewHeader().Encode()
	unit := make([]byte, UnitSize)
	copy(unit[staticA:], h)
	copy(unit[staticB:], h)
	if _, err = f.Write(unit); err == nil {
		err = f.Sync()
	}
	if err = first(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		if isNoSpace(err) {
			return &SpaceError{File: temp, Need: UnitSize, Limit: UnitSize, Err: err}
		}
		return wrap(err)
	}
	return syncDir(dir)
}

// openFile opens the heap file and checks its header before anything is mapped.
func (r *Region) openFile(cfg Config) error {
	st, err := os.Stat(r.path)
	if err != nil {
		return wrap(err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s: not a regular file (%v)", ErrForeign, r.path, st.Mode().Type())
	}
	flag := os.O_RDWR
	if cfg.ReadOnly {
		flag = os.O_RDONLY
	}
	if r.file, err = os.OpenFile(r.path, flag, 0); err != nil {
		return wrap(err)
	}
	head := make([]byte, ClockOff)
	n, err := r.file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return wrap(err)
	}
	_, damaged, err := decodeHeaders(r.path, head[:n])
	switch {
	case st.Size() == 0:
		return &CorruptError{File: r.path, Rule: "the file is empty"}
	case err != nil:
		return err
	case st.Size() < UnitSize:
		return &CorruptError{File: r.path, Off: Off(st.Size()), Rule: fmt.Sprintf("the file is cut short: %d bytes, the header alone has %d", st.Size(), UnitSize)}
	case uint64(st.Size()) > cfg.MaxSize:
		return &SpaceError{File: r.path, Need: uint64(st.Size()), Size: uint64(st.Size()), Limit: cfg.MaxSize}
	}
	if damaged != nil && cfg.Warn != nil {
		cfg.Warn("one of two header copies is damaged", damaged)
	}
	r.size.Store(uint64(st.Size()) &^ (UnitSize - 1))
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return wrap(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) {
		return wrap(err)
	}
	return nil
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tidemark: %w", err)
}
