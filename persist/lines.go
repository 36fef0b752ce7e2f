package persist

// Off is the offset of a byte in a Region. Offset 0 lies in the header and
// serves as nil.
type Off uint64

// LineSize is the unit of write-back: a cache line of the tuned targets.
const LineSize = 64

// Lines returns the first line that [off, off+n) touches and how many lines it
// touches; none for n <= 0.
func Lines(off Off, n int) (first Off, count int) {
	first = off &^ (LineSize - 1)
	if n <= 0 {
		return first, 0
	}
	last := (off + Off(n) - 1) &^ (LineSize - 1)
	return first, int((last-first)/LineSize) + 1
}
