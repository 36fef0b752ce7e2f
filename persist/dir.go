package persist

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
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

// maxMaxSize is what structures can count on: offsets below 1<<44.
const maxMaxSize = 1 << 44

const defaultMaxSize = 1 << min(40, 30+(^uint(0)>>63)*10)

// OpenDir locks and maps the heap in dir, creating it where there is none. The
// parent of dir must exist. On an error nothing has changed; a damaged header copy
// is healed by [Region.Heal] only.
//
// Crash points of a creation: the heap file is filled under another name,
// synced, and renamed; before the rename there is no heap, after it a whole
// one. A left-over temporary file is replaced by the next creation.
func OpenDir(dir string, cfg Config) (_ *Region, err error) {
	if cfg.MaxSize == 0 {
		cfg.MaxSize = defaultMaxSize
	}
	cfg.MaxSize = min(cfg.MaxSize, maxMaxSize)
	if cfg.MaxSize = cfg.MaxSize &^ (UnitSize - 1); cfg.MaxSize < 2*UnitSize {
		return nil, fmt.Errorf("tidemark: %s: a maximum of %d bytes is less than two units of %d", dir, cfg.MaxSize, UnitSize)
	}
	r := &Region{path: filepath.Join(dir, heapFile), readOnly: cfg.ReadOnly, max: cfg.MaxSize, domain: cfg.Domain, latency: cfg.Latency}
	opened := false
	defer func() {
		if !opened { // a panic of cfg.Warn included
			r.Abandon()
		}
	}()
	deadline := time.Now().Add(cfg.LockTimeout)
	if err := r.openLock(dir, cfg, deadline); err != nil {
		return nil, err
	}
	if !cfg.ReadOnly {
		if err := r.createHeap(dir); err != nil {
			return nil, err
		}
	}
	if err := r.openFile(cfg, deadline); err != nil {
		return nil, err
	}
	if err := r.mapFile(); err != nil {
		return nil, err
	}
	if err := r.readHeader(); err != nil {
		return nil, err
	}
	opened = true
	return r, nil
}

// openLock takes the directory's lock: exclusive, or shared for reading.
func (r *Region) openLock(dir string, cfg Config, deadline time.Time) error {
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return fmt.Errorf("tidemark: %s: %w", dir, syscall.ENOTDIR)
	} else if errors.Is(err, fs.ErrNotExist) && !cfg.ReadOnly {
		switch err := os.Mkdir(dir, 0o777); {
		case err == nil:
			r.made = append(r.made, dir)
		case !errors.Is(err, fs.ErrExist):
			return wrap(err)
		}
		if err := syncDir(filepath.Dir(filepath.Clean(dir))); err != nil {
			return err
		}
	} else if err != nil {
		return wrap(err)
	}
	path := filepath.Join(dir, lockFile)
	for {
		if err := r.openLockFile(path, cfg); r.lock == nil {
			return err
		}
		if err := waitLock(r.lock, !cfg.ReadOnly, deadline); err != nil {
			r.made = nil // the lock's holder uses it
			return err
		}
		// An opener that failed may have removed the file meanwhile.
		have, err := r.lock.Stat()
		if err != nil {
			return wrap(err)
		}
		if now, err := os.Stat(path); err == nil && os.SameFile(have, now) {
			return nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return wrap(err)
		}
		r.lock.Close()
		r.lock = nil
	}
}

// openLockFile opens the lock file, or returns nil where there is none to be
// opened: a copy of a heap without it, to which nobody writes.
func (r *Region) openLockFile(path string, cfg Config) (err error) {
	const nonblock = syscall.O_NONBLOCK // should it be a pipe
	if cfg.ReadOnly {
		if r.lock, err = os.OpenFile(path, os.O_RDONLY|nonblock, 0); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return wrap(err)
	}
	if r.lock, err = os.OpenFile(path, os.O_RDWR|nonblock, 0); !errors.Is(err, fs.ErrNotExist) {
		return wrap(err)
	}
	// What is no heap gets no lock file.
	if _, err := os.Lstat(r.path); err == nil {
		f, err := openChecked(r.path, os.O_RDONLY, Config{MaxSize: cfg.MaxSize})
		if err != nil {
			return err
		}
		f.Close()
	}
	if r.lock, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666); err == nil {
		r.made = append(r.made, path)
		return nil
	}
	r.lock, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|nonblock, 0o666)
	return wrap(err)
}

// waitLock locks f, waiting for other openers until the deadline.
func waitLock(f *os.File, exclusive bool, deadline time.Time) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		switch err := lockFD(f, exclusive); {
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

// Abandon closes the region of a heap that could not be opened, and removes what
// opening it has made.
func (r *Region) Abandon() {
	made := r.made
	r.made = nil
	for i := len(made) - 1; i >= 0; i-- { // before the lock is given up
		os.Remove(made[i])
	}
	r.Close()
}

// createHeap makes a heap file holding only a header, if there is none.
func (r *Region) createHeap(dir string) error {
	if _, err := os.Lstat(r.path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return wrap(err)
	}
	temp := filepath.Join(dir, tempFile)
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrap(err)
	}
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
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
		err = os.Rename(temp, r.path)
	}
	if err != nil {
		os.Remove(temp)
		if isNoSpace(err) {
			return &SpaceError{File: temp, Need: UnitSize, Limit: UnitSize, Err: err}
		}
		return wrap(err)
	}
	r.made = append(r.made, r.path)
	return syncDir(dir)
}

// openFile opens and locks the heap file and checks its header before anything is
// mapped. The file has a lock of its own because links can give it two directories.
func (r *Region) openFile(cfg Config, deadline time.Time) (err error) {
	flag := os.O_RDWR
	if cfg.ReadOnly {
		flag = os.O_RDONLY
	}
	if r.file, err = openChecked(r.path, flag, cfg); err != nil {
		return err
	}
	if err := waitLock(r.file, !cfg.ReadOnly, deadline); err != nil {
		return err
	}
	st, err := r.file.Stat()
	if err != nil {
		return wrap(err)
	}
	r.size.Store(uint64(st.Size()) &^ (UnitSize - 1))
	return nil
}

// openChecked opens a heap file and checks size and header.
func openChecked(path string, flag int, cfg Config) (_ *os.File, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, wrap(err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s: not a regular file (%v)", ErrForeign, path, st.Mode().Type())
	}
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, wrap(err)
	}
	ok := false
	defer func() {
		if !ok {
			f.Close()
		}
	}()
	head := make([]byte, ClockOff)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, wrap(err)
	}
	_, damaged, err := decodeHeaders(path, head[:n])
	const sector = 512 // file systems grow files by no less
	switch {
	case st.Size() == 0:
		return nil, &CorruptError{File: path, Rule: "the file is empty"}
	case err != nil:
		return nil, err
	case st.Size() < UnitSize:
		return nil, &CorruptError{File: path, Off: Off(st.Size()), Rule: fmt.Sprintf("the file is cut short: %d bytes, the header alone has %d", st.Size(), UnitSize)}
	case st.Size()%sector != 0:
		return nil, &CorruptError{File: path, Off: Off(st.Size()), Rule: fmt.Sprintf("the file is cut short: %d bytes are no whole sectors", st.Size())}
	case uint64(st.Size()) > cfg.MaxSize:
		return nil, &SpaceError{File: path, Need: uint64(st.Size()), Size: uint64(st.Size()), Limit: cfg.MaxSize}
	}
	if damaged != nil && cfg.Warn != nil {
		cfg.Warn("one of two header copies is damaged", damaged)
	}
	ok = true
	return f, nil
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
