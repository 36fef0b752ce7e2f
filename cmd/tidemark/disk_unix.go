//go:build unix

package main

import (
	"os"
	"syscall"
)

// onDisk returns how many bytes the file system has set aside for a file.
func onDisk(path string) (uint64, bool) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return uint64(st.Blocks) * 512, true
}
