package persist

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A Region is a run of bytes that survives crashes, mapped at one address for
// as long as it is open. Offsets, never addresses, are stored in it.
//
// Methods may be called by any goroutine; Close only when nothing uses the
// region any more.
type Region struct {
	base    unsafe.Pointer // first byte; mapped up to max, backed up to size
	max     uint64
	size    atomic.Uint64
	mode    mode
	domain  Domain
	latency time.Duration
	sim     Machine

	path     string // of the heap file; "" in memory
	readOnly bool
	header   Header
	mem      []byte // keeps Go-heap regions reachable
	file     *os.File
	lock     *os.File
	made     []string // what opening has created, in this order
	unmap    func() error
	growMu   sync.Mutex

	handles atomic.Int64
	counts  counts
}

// Machine is a simulated memory under a Region. Offsets and lengths are always
// within Memory. Calls are serialised by the caller of the region's handles;
// package crashsim documents its own.
type Machine interface {
	// Memory returns the volatile view, whose length is the region's maximum.
	Memory() []byte
	// Size and Grow are the backed size, which survives crashes.
	Size() uint64
	Grow(size uint64) error
	// Wrote reports that plain stores were made to [off, off+n).
	Wrote(off Off, n int)
	WriteBack(handle int, off Off, n int)
	Order(handle int)
	Store(handle int, off Off, v uint64)
	Fence(handle int) error
	// Point marks a named place in the code: a place to crash at.
	Point(name string)
	// Quiet runs f without a crash in it.
	Quiet(f func())
}

// NewMemory returns a formatted region on the Go heap, of max bytes, for tests
// and for data that need not survive the process.
func NewMemory(max uint64) (*Region, error) {
	if max > defaultMaxSize {
		return nil, fmt.Errorf("tidemark: (memory): a maximum of %d bytes is more than %d", max, uint64(defaultMaxSize))
	}
	max = roundUp(max, UnitSize)
	r := &Region{mem: make([]byte, max+LineSize), max: max, path: "(memory)"}
	r.base = alignedBase(r.mem)
	r.size.Store(UnitSize)
	r.header = NewHeader()
	return r, r.format()
}

// NewSimulated returns a region on a simulated machine, formatting it where the
// machine's memory is new.
func NewSimulated(m Machine) (*Region, error) {
	mem := m.Memory()
	r := &Region{mem: mem, base: alignedBase(mem), max: uint64(len(mem)) &^ (UnitSize - 1), mode: modeSim, sim: m, path: "(simulated)"}
	if r.base != unsafe.Pointer(&mem[0]) {
		return nil, fmt.Errorf("tidemark: simulated memory is not aligned to %d bytes", LineSize)
	}
	r.size.Store(m.Size())
	if m.Size() > 0 {
		return r, r.readHeader()
	}
	r.header = NewHeader()
	var err error
	m.Quiet(func() { // a heap file appears whole as well (P4)
		if err = r.Grow(UnitSize); err == nil {
			err = r.format()
		}
	})
	return r, err
}

func alignedBase(mem []byte) unsafe.Pointer {
	p := unsafe.Pointer(&mem[0])
	// Sound: stays within mem, which callers made LineSize longer where needed.
	return unsafe.Add(p, (LineSize-uintptr(p)%LineSize)%LineSize)
}

// Size returns how many bytes are backed by media.
func (r *Region) Size() uint64 { return r.size.Load() }

// Max returns the size the region may grow to.
func (r *Region) Max() uint64 { return r.max }

// Path names the heap file, for messages.
func (r *Region) Path() string { return r.path }

// Domain returns the domain the region was opened in.
func (r *Region) Domain() Domain { return r.domain }

// ReadOnly reports whether changes stay private to this process.
func (r *Region) ReadOnly() bool { return r.readOnly }

// Header returns the static part of the header.
func (r *Region) Header() Header { return r.header }

// ptr returns the address of [off, off+n), which must be backed (P1).
func (r *Region) ptr(off Off, n int) unsafe.Pointer {
	if n < 0 || uint64(off) > r.size.Load() || uint64(n) > r.size.Load()-uint64(off) {
		r.outside(off, n)
	}
	return unsafe.Add(r.base, uintptr(off))
}

func (r *Region) outside(off Off, n int) {
	panic(fmt.Sprintf("tidemark: %s: range [%#x, +%d) outside the region of %d bytes", r.path, uint64(off), n, r.size.Load()))
}

// Bytes returns the memory of [off, off+n). It stays valid until Close. Stores
// through it are plain stores: announce them with [Region.Wrote].
func (r *Region) Bytes(off Off, n int) []byte {
	return unsafe.Slice((*byte)(r.ptr(off, n)), n)
}

// Word returns the address of the aligned word at off.
func (r *Region) Word(off Off) *uint64 {
	if off%8 != 0 {
		r.outside(off, 8)
	}
	return (*uint64)(r.ptr(off, 8))
}

// Pointer returns the address of [off, off+n), for typed views in the packages
// that are allowed unsafe.
func (r *Region) Pointer(off Off, n int) unsafe.Pointer { return r.ptr(off, n) }

// Load reads the aligned word at off.
func (r *Region) Load(off Off) uint64 { return atomic.LoadUint64(r.Word(off)) }

// Set makes a plain store of one word. For words whose order matters use
// [Handle.Store].
func (r *Region) Set(off Off, v uint64) {
	StoreWord(r.Word(off), v)
	r.Wrote(off, 8)
}

// Wrote tells a simulated machine of plain stores to [off, off+n). Real domains
// ignore it.
func (r *Region) Wrote(off Off, n int) {
	if r.sim != nil {
		r.sim.Wrote(off, n)
	}
}

// Point marks a named place, at which a simulated machine may crash.
func (r *Region) Point(name string) {
	if r.sim != nil {
		r.sim.Point(name)
	}
}

// Simulated reports whether a Machine is under the region.
func (r *Region) Simulated() bool { return r.sim != nil }

// Grow backs at least size bytes, rounded up to whole units. The new bytes read
// as zero. Its error matches ErrNoSpace and leaves the region as it was.
func (r *Region) Grow(size uint64) error {
	size = roundUp(size, UnitSize)
	r.growMu.Lock()
	defer r.growMu.Unlock()
	have := r.size.Load()
	if size <= have {
		return nil
	}
	if size > r.max {
		return &SpaceError{File: r.path, Need: size - have, Size: have, Limit: r.max}
	}
	switch {
	case r.sim != nil:
		if err := r.sim.Grow(size); err != nil {
			return err
		}
	case r.readOnly:
		return fmt.Errorf("%w: %s", ErrReadOnly, r.path)
	case r.file != nil:
		if err := r.growFile(have, size); err != nil {
			return r.spaceError(size-have, err)
		}
	}
	r.size.Store(size)
	return nil
}

// Discard gives the media of [off, off+n), whole units, back to the file system
// where that can be done, and reports whether it did. The bytes then read as
// zero, and must be refilled before they are stored to.
func (r *Region) Discard(off Off, n int) bool {
	return r.file != nil && !r.readOnly && r.discardFile(int64(off), int64(n)) == nil
}

// Refill backs a discarded range again. Its error matches ErrNoSpace.
func (r *Region) Refill(off Off, n int) error {
	if r.file == nil {
		return nil
	}
	if err := r.refillFile(int64(off), int64(n)); err != nil {
		return r.spaceError(uint64(n), err)
	}
	return nil
}

func (r *Region) spaceError(need uint64, err error) error {
	if !isNoSpace(err) {
		return fmt.Errorf("tidemark: %s: growing by %d bytes: %w", r.path, need, err)
	}
	return &SpaceError{File: r.path, Need: need, Size: r.size.Load(), Limit: r.max, Err: err}
}

// DiskBytes returns what the file takes on disk, holes left out; 0 in memory.
func (r *Region) DiskBytes() uint64 {
	if r.file == nil {
		return 0
	}
	return diskBytes(r.file)
}

// Close unmaps the region and gives up its lock. A later access is outside it.
func (r *Region) Close() error {
	var err error
	r.size.Store(0)
	if r.unmap != nil {
		err = r.unmap()
		r.unmap = nil
	}
	if r.file != nil {
		err = first(err, r.file.Close())
		r.file = nil
	}
	if r.lock != nil {
		err = first(err, r.lock.Close())
		r.lock = nil
	}
	runtime.KeepAlive(r.mem)
	r.mem = nil
	return err
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }
