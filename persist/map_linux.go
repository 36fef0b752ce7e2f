package persist

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps the whole reservation over the file at once: the file grows
// under the mapping with fallocate, so addresses never change and a store into
// the backed part never meets a hole.
func (r *Region) mapFile() error {
	prot, kind := unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED
	if r.readOnly {
		kind = unix.MAP_PRIVATE
		r.max = r.size.Load() // it cannot grow
	}
	if r.domain == PowerLoss && !r.readOnly {
		if WriteBackInstruction() == noInstruction {
			return fmt.Errorf("%w: %s: PowerLoss in a build without write-back instructions", ErrUnsupported, r.path)
		}
		kind = unix.MAP_SHARED_VALIDATE | unix.MAP_SYNC
	}
	p, err := mmapReserve(r.file, &r.max, r.size.Load(), prot, kind)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && kind&unix.MAP_SYNC != 0:
		return fmt.Errorf("%w: %s: PowerLoss needs a file system that grants MAP_SYNC (persistent memory, mounted with dax); this one does not", ErrUnsupported, r.path)
	case err != nil:
		return fmt.Errorf("tidemark: %s: mmap of %d bytes: %w", r.path, r.max, err)
	}
	r.base = p
	max := r.max
	r.unmap = func() error { return unix.MunmapPtr(p, uintptr(max)) }
	if r.domain != ProcessCrash && !r.readOnly {
		r.mode = modeLines
	}
	if isTmpfs(r.file) {
		// Memory is the medium: set up page tables ahead of the scan.
		unix.Madvise(unsafe.Slice((*byte)(p), r.size.Load()), unix.MADV_POPULATE_READ)
	} else {
		// Small folios: one store must not dirty 2 MiB.
		unix.Madvise(unsafe.Slice((*byte)(p), max), unix.MADV_RANDOM)
	}
	return nil
}

// mmapReserve maps *max bytes of f, or less where the address space or a limit
// on it does not allow that, but at least size.
func mmapReserve(f *os.File, max *uint64, size uint64, prot, kind int) (unsafe.Pointer, error) {
	for {
		p, err := unix.MmapPtr(int(f.Fd()), 0, nil, uintptr(*max), prot, kind|unix.MAP_NORESERVE)
		if !errors.Is(err, unix.ENOMEM) || *max/2 < roundUp(size, UnitSize) {
			return p, err
		}
		*max = *max / 2 &^ (UnitSize - 1)
	}
}

func isTmpfs(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// growFile backs [have, size). fallocate, not truncate: a full disk must be an
// error here, not a SIGBUS at a store.
func (r *Region) growFile(have, size uint64) error {
	if err := r.refillFile(int64(have), int64(size-have)); err != nil {
		r.file.Truncate(int64(have)) // give back what a partial fallocate took
		return err
	}
	if isTmpfs(r.file) {
		unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(r.base, uintptr(have))), size-have), unix.MADV_POPULATE_WRITE)
	}
	return nil
}

func (r *Region) refillFile(off, n int64) error { return r.fallocate(0, off, n) }

func (r *Region) discardFile(off, n int64) error {
	return r.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (r *Region) fallocate(how uint32, off, n int64) error {
	for {
		if err := unix.Fallocate(int(r.file.Fd()), how, off, n); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func lockFD(f *os.File, exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
