//go:build !purego && !race

package persist

import "unsafe"

// Assembly routines; writeback_amd64.s. None of them lets p escape.
//
// StoreWord is a plain MOV: sync/atomic's store is XCHG, which is a fence, and
// the compiler may merge or split plain Go assignments.

// StoreWord writes one aligned word with a single plain store instruction.
//
//go:noescape
func StoreWord(p *uint64, v uint64)

//go:noescape
func clwbLines(p unsafe.Pointer, count int)

//go:noescape
func clflushoptLines(p unsafe.Pointer, count int)

//go:noescape
func clflushLines(p unsafe.Pointer, count int)

// storeFence orders earlier write-backs before later stores: SFENCE.
func storeFence()

// drainFence also waits until they have left the store buffer: SFENCE, MFENCE.
func drainFence()

func cpuid7() (ebx uint32)

// The best instruction the processor has: CLWB keeps the line, CLFLUSHOPT
// drops it, CLFLUSH also serialises.
var flushKind = func() int {
	ebx := cpuid7()
	switch {
	case ebx&(1<<24) != 0:
		return 0
	case ebx&(1<<23) != 0:
		return 1
	}
	return 2
}()

func writeBackLines(p unsafe.Pointer, count int) {
	switch flushKind {
	case 0:
		clwbLines(p, count)
	case 1:
		clflushoptLines(p, count)
	default:
		clflushLines(p, count)
	}
}

// WriteBackInstruction names what WriteBack executes on pmem-like domains.
func WriteBackInstruction() string { return [...]string{"CLWB", "CLFLUSHOPT", "CLFLUSH"}[flushKind] }
