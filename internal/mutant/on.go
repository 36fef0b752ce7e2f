//go:build tidemark_mutants

package mutant

import "sync/atomic"

var current atomic.Value

// Is reports whether the named mutant is on.
func Is(name string) bool { return current.Load() == name }

// Set turns one mutant on, all others off. "" is none.
func Set(name string) { current.Store(name) }
