//go:build !purego && !race

package persist

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// StoreWord writes one aligned word with a single plain store instruction.
//
//go:noescape
func StoreWord(p *uint64, v uint64)

// cvapLines cleans lines to the point of persistence, cvacLines to that of
// coherency, for processors without the former.
//
//go:noescape
func cvapLines(p unsafe.Pointer, count int)

//go:noescape
func cvacLines(p unsafe.Pointer, count int)

// storeFence and drainFence are both DSB ISH, which completes earlier cleaning.
func storeFence()
func drainFence()

func writeBackLines(p unsafe.Pointer, count int) {
	if cpu.ARM64.HasDCPOP {
		cvapLines(p, count)
	} else {
		cvacLines(p, count)
	}
}

// WriteBackInstruction names what WriteBack executes on pmem-like domains.
func WriteBackInstruction() string {
	if cpu.ARM64.HasDCPOP {
		return "DC CVAP"
	}
	return "DC CVAC"
}
