package persist

import (
	"errors"
	"fmt"
	"syscall"
)

// Sentinels for errors.Is. Package tidemark re-exports them.
var (
	// ErrClosed: the heap, or the structure, is closed.
	ErrClosed = errors.New("tidemark: closed")
	// ErrReadOnly: a change of a heap that was opened read-only.
	ErrReadOnly = errors.New("tidemark: read-only")
	// ErrLocked: another opener holds the heap.
	ErrLocked = errors.New("tidemark: heap is in use")
	// ErrCorrupt: media contradict the format. [CorruptError] has details.
	ErrCorrupt = errors.New("tidemark: corrupt media")
	// ErrFormat: a heap of a format version or with features this build does
	// not know. [FormatError] has details.
	ErrFormat = errors.New("tidemark: unknown format")
	// ErrForeign: the file is not a tidemark heap.
	ErrForeign = errors.New("tidemark: not a tidemark heap")
	// ErrNoSpace: the file system or the heap's maximum is exhausted.
	// [SpaceError] has details; it also matches syscall.ENOSPC.
	ErrNoSpace = errors.New("tidemark: no space")
	// ErrDurability: a write-back, order or fence failed, so what was to become
	// durable may not be. It is final for the heap that reports it.
	ErrDurability = errors.New("tidemark: durability lost")
	// ErrUnsupported: this platform or file system cannot do it.
	ErrUnsupported = errors.New("tidemark: unsupported")
)

// CorruptError says which bytes broke which rule. It matches ErrCorrupt.
type CorruptError struct {
	File      string `json:"file,omitempty"`      // path, or "" where unknown
	Off       Off    `json:"offset"`              // where in the file
	Structure string `json:"structure,omitempty"` // name of the structure concerned, or ""
	Rule      string `json:"rule"`                // what should have held
}

func (e *CorruptError) Error() string {
	s := ErrCorrupt.Error()
	if e.File != "" {
		s += ": " + e.File
	}
	if e.Structure != "" {
		s += fmt.Sprintf(": structure %q", e.Structure)
	}
	return fmt.Sprintf("%s: offset %#x: %s", s, uint64(e.Off), e.Rule)
}

// Is reports a match with ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// FormatError says which format the file has and which this build reads.
type FormatError struct {
	File       string
	What       string // "format version" or "incompatible features"
	Have, Want uint64
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%v: %s: %s: have %d, want %d", ErrFormat, e.File, e.What, e.Have, e.Want)
}

// Is reports a match with ErrFormat.
func (e *FormatError) Is(target error) bool { return target == ErrFormat }

// SpaceError says which limit was met.
type SpaceError struct {
	File  string
	Need  uint64 // bytes that were asked for
	Size  uint64 // bytes the file has
	Limit uint64 // maximum size of the heap
	Err   error  // what the file system said, or nil where Limit was met
}

func (e *SpaceError) Error() string {
	s := fmt.Sprintf("%v: %s: %d bytes needed, file has %d of at most %d", ErrNoSpace, e.File, e.Need, e.Size, e.Limit)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is reports a match with ErrNoSpace and with syscall.ENOSPC.
func (e *SpaceError) Is(target error) bool { return target == ErrNoSpace || target == syscall.ENOSPC }

// Unwrap returns the file system's error.
func (e *SpaceError) Unwrap() error { return e.Err }
