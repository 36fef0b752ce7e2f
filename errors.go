package tidemark

import (
	"errors"

	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
)

// Errors to branch on, with errors.Is. Details are in the typed errors below.
var (
	ErrClosed        = persist.ErrClosed
	ErrReadOnly      = persist.ErrReadOnly
	ErrLocked        = persist.ErrLocked
	ErrCorrupt       = persist.ErrCorrupt
	ErrFormat        = persist.ErrFormat
	ErrForeign       = persist.ErrForeign
	ErrNoSpace       = persist.ErrNoSpace
	ErrDurability    = persist.ErrDurability
	ErrUnsupported   = persist.ErrUnsupported
	ErrOpEnded       = epoch.ErrOpEnded
	ErrOtherHeap     = epoch.ErrOtherHeap
	ErrOldSeesNew    = epoch.ErrOldSeesNew
	ErrConflict      = epoch.ErrConflict
	ErrValueTooLarge = payload.ErrValueTooLarge
	ErrStaleRef      = payload.ErrStaleRef
	ErrType          = payload.ErrType

	// ErrNotFound: the key, or the structure, is not there.
	ErrNotFound = errors.New("tidemark: not found")
	// ErrKind: a structure is of another kind than it is opened as.
	ErrKind = errors.New("tidemark: structure is of another kind")
	// ErrSchema: a structure's payload types have changed since it was made.
	ErrSchema = errors.New("tidemark: payload types have changed")
	// ErrKeyTooLarge: a key or a name is longer than may be.
	ErrKeyTooLarge = errors.New("tidemark: key too large")
)

// Typed errors, for errors.As.
type (
	CorruptError = persist.CorruptError
	FormatError  = persist.FormatError
	SpaceError   = persist.SpaceError
)
