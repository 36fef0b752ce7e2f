//go:build unix

package persist

import (
	"os"

	"golang.org/x/sys/unix"
)

func diskBytes(f *os.File) uint64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}
