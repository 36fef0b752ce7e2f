package main

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/puzpuzpuz/xsync/v3"
)

// xsyncMap is a concurrent map of the Go heap, with no durability: what a Go
// program would use that does not need any. It copies values in and out, as
// tidemark does. Keys of lookups alias the caller's buffer, since the map does not
// keep them; converting them would be one allocation each that is not its own.
//
// Its time includes the garbage collector's: that is part of a map on the heap.
type xsyncMap struct {
	m *xsync.MapOf[string, []byte]
}

func openXsync(s setup) (engine, error) {
	return xsyncMap{xsync.NewMapOf[string, []byte](xsync.WithPresize(s.entries))}, nil
}

func alias(key []byte) string { return unsafe.String(unsafe.SliceData(key), len(key)) }

func (x xsyncMap) get(dst, key []byte) ([]byte, bool, error) {
	val, ok := x.m.Load(alias(key))
	return append(dst, val...), ok, nil
}

// insert copies only what it has to: LoadOrStore begins with this Load as well.
func (x xsyncMap) insert(key, val []byte) (bool, error) {
	if _, ok := x.m.Load(alias(key)); ok {
		return false, nil
	}
	_, loaded := x.m.LoadOrStore(strings.Clone(alias(key)), slices.Clone(val))
	return !loaded, nil
}

func (x xsyncMap) remove(key []byte) (bool, error) {
	_, ok := x.m.LoadAndDelete(alias(key))
	return ok, nil
}

func (xsyncMap) settle() error { return nil }
func (xsyncMap) close() error  { return nil }
