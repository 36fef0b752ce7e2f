//go:build purego || race || (!amd64 && !arm64)

package persist

import (
	"sync/atomic"
	"unsafe"
)

// The portable fallback, also used under the race detector, which cannot see
// stores made by assembly. It keeps the order of stores among threads but moves
// nothing to media: domains that need that are refused where it is built in.

// StoreWord writes one aligned word with a single store.
func StoreWord(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

func writeBackLines(unsafe.Pointer, int) {}
func storeFence()                        {}
func drainFence()                        {}

// WriteBackInstruction names what WriteBack executes on pmem-like domains.
func WriteBackInstruction() string { return noInstruction }
