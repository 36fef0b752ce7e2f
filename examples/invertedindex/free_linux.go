package main

import "golang.org/x/sys/unix"

// free returns how many bytes a file system has left.
func free(dir string) uint64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}
