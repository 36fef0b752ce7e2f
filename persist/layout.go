package persist

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"
	"time"
)

// The first unit of a heap file is the region header. All integers are
// little-endian. docs/FORMAT.md repeats this table and a test compares the two.
//
//	0x0000  static header, copy A   StaticSize bytes, crc last
//	0x1000  static header, copy B   the same bytes
//	0x2000  epoch clock             one sealed word, alone on its line
//	0x2040  clean word              sealed: the clock value at a clean Close, or 0
//	0x2048  size word               sealed: units the file once had, 0 for unknown; it never shrinks
//	0x2080  boot id                 16 bytes of the last writer's boot, then their crc
//	...     zero up to 0x10000
//
// A static header is:
//
//	+0   magic     8 bytes "TIDEMARK"
//	+8   format    u32
//	+12  compat    u32   feature bits an older build may ignore
//	+16  incompat  u32   feature bits it must know
//	+20  unit      u32   UnitSize
//	+24  uuid      16 bytes
//	+40  created   i64   Unix nanoseconds
//	+48  zero      12 bytes
//	+60  crc       u32   CRC-32C of the bytes before it
const (
	// UnitSize is the granule of the region: the header, and each superblock,
	// takes whole units.
	UnitSize = 64 << 10
	// FormatVersion is the format this package writes and reads.
	FormatVersion = 1

	staticA    Off = 0x0000
	staticB    Off = 0x1000
	StaticSize     = 64

	// ClockOff is where the epoch clock lives, CleanOff the clean word, SizeOff
	// the size word, BootOff the boot id.
	ClockOff Off = 0x2000
	CleanOff Off = 0x2040
	SizeOff  Off = 0x2048
	BootOff  Off = 0x2080

	magic = "TIDEMARK"
)

// Castagnoli is the table of every checksum on media.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the static part of the region header.
type Header struct {
	Format   uint32
	Compat   uint32
	Incompat uint32
	UUID     [16]byte
	Created  time.Time
}

// ID returns the heap's UUID as text.
func (h Header) ID() string { return hex.EncodeToString(h.UUID[:]) }

// NewHeader returns the header of a new heap.
func NewHeader() Header {
	h := Header{Format: FormatVersion, Created: time.Now()}
	rand.Read(h.UUID[:])
	return h
}

// Encode returns the header's media form.
func (h Header) Encode() []byte {
	b := make([]byte, StaticSize)
	copy(b, magic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], h.Format)
	le.PutUint32(b[12:], h.Compat)
	le.PutUint32(b[16:], h.Incompat)
	le.PutUint32(b[20:], UnitSize)
	copy(b[24:], h.UUID[:])
	le.PutUint64(b[40:], uint64(h.Created.UnixNano()))
	le.PutUint32(b[60:], crc32.Checksum(b[:60], Castagnoli))
	return b
}

// DecodeHeader parses one static header. It looks at the magic, the version,
// the features and then the checksum, in this order, so that a newer format is
// told from damage.
func DecodeHeader(file string, off Off, b []byte) (Header, error) {
	var h Header
	if len(b) < StaticSize {
		return h, &CorruptError{File: file, Off: off, Rule: fmt.Sprintf("header has %d of %d bytes", len(b), StaticSize)}
	}
	b = b[:StaticSize]
	if string(b[:8]) != magic {
		return h, fmt.Errorf("%w: %s: magic is %q", ErrForeign, file, b[:8])
	}
	le := binary.LittleEndian
	sum := le.Uint32(b[60:])
	sound := crc32.Checksum(b[:60], Castagnoli) == sum
	h.Format, h.Compat, h.Incompat = le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[16:])
	switch {
	case h.Format != FormatVersion && sound:
		return h, &FormatError{File: file, What: "format version", Have: uint64(h.Format), Want: FormatVersion}
	case h.Incompat != 0 && sound:
		return h, &FormatError{File: file, What: "incompatible features", Have: uint64(h.Incompat), Want: 0}
	case !sound:
		return h, &CorruptError{File: file, Off: off, Rule: fmt.Sprintf("header checksum %#x does not match its bytes", sum)}
	case le.Uint32(b[20:]) != UnitSize:
		return h, &CorruptError{File: file, Off: off + 20, Rule: fmt.Sprintf("unit size %d, want %d", le.Uint32(b[20:]), UnitSize)}
	case len(bytes.Trim(b[48:60], "\x00")) != 0:
		return h, &CorruptError{File: file, Off: off + 48, Rule: "reserved bytes are not zero"}
	}
	copy(h.UUID[:], b[24:40])
	h.Created = time.Unix(0, int64(le.Uint64(b[40:])))
	return h, nil
}

// decodeHeaders reads both copies from the first bytes of a heap file. damaged
// says what is wrong with the one copy that is not sound, if the other is.
func decodeHeaders(file string, b []byte) (h Header, damaged, err error) {
	h, errA := DecodeHeader(file, staticA, b)
	hb, errB := DecodeHeader(file, staticB, b[min(len(b), int(staticB)):])
	var fe *FormatError
	switch {
	case errors.As(errA, &fe) || errors.As(errB, &fe):
		return h, nil, fe // an upgrade that was cut, never damage
	case errA == nil && errB == nil && h != hb:
		return h, nil, &CorruptError{File: file, Off: staticB, Rule: "the two header copies differ"}
	case errA == nil:
		return h, errB, nil
	case errB == nil:
		return hb, errA, nil
	case errors.Is(errA, ErrForeign) && errors.Is(errB, ErrCorrupt) && len(b) >= int(staticB)+StaticSize:
		return h, nil, errB // that copy has the magic
	}
	return h, nil, errA
}

// Seal adds a check byte to a word of up to 56 bits. A zero word seals to zero.
func Seal(v uint64) uint64 { return v | uint64(fold(v))<<56 }

// Unseal returns the word under a seal and whether the seal is right. Every
// flip of one bit breaks it.
func Unseal(w uint64) (v uint64, ok bool) {
	v = w & (1<<56 - 1)
	return v, fold(v) == byte(w>>56)
}

// fold is the exclusive or of the bytes: every flip of one bit shows.
func fold(v uint64) byte {
	v ^= v >> 32
	v ^= v >> 16
	v ^= v >> 8
	return byte(v)
}

// format writes a new header into memory that is not yet anyone's heap.
func (r *Region) format() error {
	b := r.header.Encode()
	copy(r.Bytes(staticA, StaticSize), b)
	copy(r.Bytes(staticB, StaticSize), b)
	r.Wrote(staticA, StaticSize)
	r.Wrote(staticB, StaticSize)
	h := r.Handle()
	h.WriteBack(staticA, StaticSize)
	h.WriteBack(staticB, StaticSize)
	return h.Fence()
}

// readHeader checks the header of mapped memory.
func (r *Region) readHeader() (err error) {
	r.header, _, err = decodeHeaders(r.path, r.Bytes(0, int(ClockOff)))
	return err
}

// Heal rewrites a damaged header copy from the sound one. Call it once nothing
// can keep the heap from being opened any more.
func (r *Region) Heal() error {
	if r.readOnly || r.HeaderDamage() == nil {
		return nil
	}
	return r.format()
}

// HeaderDamage returns what is wrong with one of the two header copies, or nil.
func (r *Region) HeaderDamage() error {
	_, damaged, err := decodeHeaders(r.path, r.Bytes(0, int(ClockOff)))
	return first(err, damaged)
}

// Reserved returns the first byte of the header unit that should be zero and is
// not, or 0. Compatible features may use such bytes.
func (r *Region) Reserved() Off {
	if r.header.Compat != 0 {
		return 0
	}
	used := [][2]Off{{staticA, StaticSize}, {staticB, StaticSize}, {ClockOff, 8}, {CleanOff, 16}, {BootOff, 20}, {UnitSize, 0}}
	for i, u := range used[1:] {
		from := used[i][0] + used[i][1]
		for j, b := range r.Bytes(from, int(u[0]-from)) {
			if b != 0 {
				return from + Off(j)
			}
		}
	}
	return 0
}

// BootID returns the boot id the last writer recorded; ok is false where none
// is recorded or its checksum is wrong.
func (r *Region) BootID() (id [16]byte, ok bool) {
	b := r.Bytes(BootOff, 20)
	copy(id[:], b)
	return id, binary.LittleEndian.Uint32(b[16:]) == crc32.Checksum(b[:16], Castagnoli)
}

// SameBoot reports whether the last writer ran under the kernel that runs now.
func (r *Region) SameBoot() bool {
	id, ok := r.BootID()
	return ok && id == bootID() && id != [16]byte{}
}

// SetBootID records the running kernel's boot id, durably with h's next Fence.
func (r *Region) SetBootID(h *Handle) {
	var line [20]byte
	id := bootID()
	copy(line[:], id[:])
	binary.LittleEndian.PutUint32(line[16:], crc32.Checksum(line[:16], Castagnoli))
	copy(r.Bytes(BootOff, len(line)), line[:])
	r.Wrote(BootOff, len(line))
	h.WriteBack(BootOff, len(line))
}

// bootID returns the running kernel's boot id, or zeros where it has none.
var bootID = sync.OnceValue(func() (id [16]byte) {
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		hex.Decode(id[:], []byte(strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")))
	}
	return id
})
