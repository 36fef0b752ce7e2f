//go:build unix && !linux

package persist

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps the reservation over the file. Systems without fallocate grow by
// truncation, so a full disk may show as a fault at a store; and none of them
// grants persistent memory.
func (r *Region) mapFile() error {
	if r.domain != ProcessCrash {
		return fmt.Errorf("%w: %s: domain %v on this system", ErrUnsupported, r.path, r.domain)
	}
	kind := unix.MAP_SHARED
	if r.readOnly {
		kind = unix.MAP_PRIVATE
		r.max = r.size.Load()
	}
	for {
		p, err := unix.MmapPtr(int(r.file.Fd()), 0, nil, uintptr(r.max), unix.PROT_READ|unix.PROT_WRITE, kind)
		if err == nil {
			r.base = p
			max := r.max
			r.unmap = func() error { return unix.MunmapPtr(p, uintptr(max)) }
			return nil
		}
		if r.max/2 < r.size.Load() {
			return fmt.Errorf("tidemark: %s: mmap of %d bytes: %w", r.path, r.max, err)
		}
		r.max = r.max / 2 &^ (UnitSize - 1)
	}
}

func (r *Region) growFile(_, size uint64) error { return r.file.Truncate(int64(size)) }

func (r *Region) refillFile(_, _ int64) error  { return nil }
func (r *Region) discardFile(_, _ int64) error { return ErrUnsupported }

func lockFD(f *os.File, exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

func isNoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFBIG) }
