//go:build unix

package torture

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// board is memory that the test and its child share. The child writes it with
// plain stores, so what it wrote last is there after a kill.
type board struct {
	phase    atomic.Uint64 // what the child is doing
	stop     atomic.Uint64 // set by the test: close the heap
	recovery atomic.Int64  // nanoseconds of Open and the maps' rebuild
	payloads atomic.Uint64 // that survived
	workers  [maxWorkers]struct {
		begun atomic.Uint64 // operations
		done  atomic.Uint64 // that have returned
		acked atomic.Uint64 // that a finished Sync covers
		_     [40]byte
	}
}

const (
	starting = iota
	opening
	checking
	loading
	closing
)

// mapBoard maps the board in the file called name, of which there may be others.
func mapBoard(name string) (*board, func(), error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(board{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return (*board)(unsafe.Pointer(&mem[0])), func() { unix.Munmap(mem) }, nil
}
