//go:build !unix

package persist

import (
	"fmt"
	"os"
)

// Systems without flock and mmap offer in-memory and simulated regions only.

func (r *Region) mapFile() error {
	return fmt.Errorf("%w: %s: heap files on this system", ErrUnsupported, r.path)
}

func (r *Region) growFile(_, _ uint64) error { return ErrUnsupported }

func (r *Region) refillFile(_, _ int64) error { return ErrUnsupported }

func (r *Region) discardFile(_, _ int64) error { return ErrUnsupported }

func lockFD(*os.File, bool) error { return ErrUnsupported }

func isNoSpace(error) bool { return false }

func diskBytes(*os.File) uint64 { return 0 }
