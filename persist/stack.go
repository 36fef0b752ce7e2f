package persist

import "unsafe"

// StackHint returns a number that tends to differ between goroutines that run
// at the same time: where the caller's stack lies. It is a hint to spread load
// and nothing else, so it does not matter that stacks move.
func StackHint() uint64 {
	var x byte
	// Sound: the address is never used as one, only mixed.
	return uint64(uintptr(unsafe.Pointer(&x))>>11) * 0x9e3779b97f4a7c15
}
