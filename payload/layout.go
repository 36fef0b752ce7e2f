package payload

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/tidemark-db/tidemark/persist"
)

// A payload's block, little-endian:
//
//	+0   control word  8 bytes (Word)
//	+8   size          u16   bytes of contents; 0xffff: see long size
//	+10  tag           u16
//	+12  checksum      u32   CRC-32C of the contents, mixed with size and tag
//	+16  long size     u64   only where size is 0xffff
//	...  contents
//
// Control word and header lie in one line (alloc, A4).
const (
	headerShort = 16
	headerLong  = 24
	longSize    = 0xffff

	// MaxSize is the largest payload, in bytes.
	MaxSize = 1<<32 - 1
)

// Ref names a payload within its heap: the offset of its block. 0 is none. A Ref
// means nothing in another heap, and nothing once its payload was deleted and
// its block used again; neither can be told for certain.
type Ref uint64

func headerOf(size int) int {
	if size < longSize {
		return headerShort
	}
	return headerLong
}

// head is a decoded header.
type head struct {
	size, hdr int // bytes of contents, bytes of header
	tag       uint16
	sum       uint32
}

func readHead(r *persist.Region, off persist.Off) head {
	b := r.Bytes(off, headerLong)
	h := head{
		size: int(binary.LittleEndian.Uint16(b[8:])), hdr: headerShort,
		tag: binary.LittleEndian.Uint16(b[10:]), sum: binary.LittleEndian.Uint32(b[12:]),
	}
	if h.size == longSize {
		h.hdr = headerLong
		h.size = int(binary.LittleEndian.Uint64(b[16:]))
	}
	return h
}

func writeHead(b []byte, size int, tag uint16, sum uint32) {
	binary.LittleEndian.PutUint16(b[8:], uint16(min(size, longSize)))
	binary.LittleEndian.PutUint16(b[10:], tag)
	binary.LittleEndian.PutUint32(b[12:], sum)
	if size >= longSize {
		binary.LittleEndian.PutUint64(b[16:], uint64(size))
	}
}

// seal mixes size and tag into a checksum of contents.
func seal(sum uint32, size int, tag uint16) uint32 {
	return sum ^ uint32(size)*0x9e3779b1 ^ uint32(tag)*0x85ebca6b ^ 0x7469646d
}

// Check reports what is wrong with the payload at ref, in a block of blockSize
// bytes, or "".
func check(r *persist.Region, ref Ref, blockSize int) string {
	h := readHead(r, persist.Off(ref))
	if h.size < 0 || h.size > blockSize-h.hdr {
		return fmt.Sprintf("L2: payload of %d bytes in a block of %d", h.size, blockSize)
	}
	b := r.Bytes(persist.Off(ref)+persist.Off(h.hdr), h.size)
	if got := seal(crc32.Checksum(b, persist.Castagnoli), h.size, h.tag); got != h.sum {
		return fmt.Sprintf("L2: checksum of contents is %#x, header says %#x", got, h.sum)
	}
	return ""
}
