// Package mutant breaks the library on purpose, so that the crash tests can be
// tested: each name is one key rule left out at the place that keeps it. Only
// builds with the tag tidemark_mutants can turn one on; in all others Is is a
// constant false, and what it guards is not compiled in.
package mutant

// Names of the mutants and the rule each leaves out.
const (
	PayloadNotWrittenBack = "payload-not-written-back" // E1: contents of a new payload
	RetireNotWrittenBack  = "retire-not-written-back"  // E1: the word of a retirement
	FreeNotWrittenBack    = "free-not-written-back"    // E1: the word of a same-epoch deletion
	AbortNotWrittenBack   = "abort-not-written-back"   // E4: words an abort puts back
	ClockNotOrdered       = "clock-not-ordered"        // E1: write-backs before the clock store
	ReuseEarly            = "reuse-early"              // A3, E3: blocks handed out one epoch too soon
	NoScrub               = "no-scrub"                 // R2: words of discarded epochs
	ClockBeforeScrub      = "clock-before-scrub"       // R2: the order of the two
	ClockNotRepersisted   = "clock-not-repersisted"    // R1: the clock as read
	WordsNotRepersisted   = "words-not-repersisted"    // R1: dead words as read
	NoStamp               = "no-stamp"                 // H2: an older operation behind a newer one
	NoYoung               = "no-young"                 // L1: the young mark of a retirement
	InPlaceAcrossEpochs   = "in-place-across-epochs"   // L4
	HeaderNotOrdered      = "header-not-ordered"       // A1: header before the clock
	WordsNotZeroed        = "words-not-zeroed"         // A2: control words of a new layout
	NoUndo                = "no-undo"                  // E4: an abort that forgets
	InnerHeadersKept      = "inner-headers-kept"       // A1: contents where headers will be read
)

// All lists them.
var All = []string{
	PayloadNotWrittenBack, RetireNotWrittenBack, FreeNotWrittenBack, AbortNotWrittenBack, ClockNotOrdered,
	ReuseEarly, NoScrub, ClockBeforeScrub, ClockNotRepersisted, WordsNotRepersisted, NoStamp, NoYoung,
	InPlaceAcrossEpochs, HeaderNotOrdered, WordsNotZeroed, NoUndo, InnerHeadersKept,
}
