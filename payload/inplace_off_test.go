//go:build !tidemark_mutants

package payload_test

// inPlaceAnyway reports whether the library was told to break rule L4.
func inPlaceAnyway() bool { return false }
