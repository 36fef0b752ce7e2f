package payload

import (
	"fmt"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist"
)

// Word is a control word: epoch<<3 | state, sealed (persist.Seal). It is always
// written by one 8-byte store. A deletion does not need a second block, as
// Montage's anti-payload is: its epoch is stored into the victim's own word.
//
// With B the last epoch that counts after a crash:
//
//	Free            available                               free
//	Live(e)         created, or last copied, in e           e <= B: keep; else discard
//	RetiredOld(e)   deleted in e; live from e-2 or before   e <= B: free; else live again
//	RetiredYoung(e) deleted in e; live from e-1             e <= B: free; e == B+1: live
//	                                                        again; else discard
//	Owned           its structure alone says                ask the owner
//
// RetiredYoung keeps, in one bit, what recovery needs of the label that the
// retirement overwrites.
type Word uint64

// State is the low three bits of a Word.
type State uint8

const (
	Free State = iota
	Live
	RetiredOld
	RetiredYoung
	Owned
)

func (s State) String() string {
	if int(s) < 5 {
		return [...]string{"free", "live", "retiredOld", "retiredYoung", "owned"}[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MakeWord returns the word of a state in an epoch.
func MakeWord(epoch uint64, s State) Word { return Word(persist.Seal(epoch<<3 | uint64(s))) }

// State returns the word's state.
func (w Word) State() State { return State(w & 7) }

// Epoch returns the word's epoch.
func (w Word) Epoch() uint64 { return uint64(w) << 8 >> 11 }

// Valid reports whether the word's seal is right and its state known.
func (w Word) Valid() bool {
	_, ok := persist.Unseal(uint64(w))
	return ok && w.State() <= Owned
}

// retire returns the word of a payload with word w when it is deleted in e; not
// for payloads of e itself, which are simply free.
func (w Word) retire(e uint64) Word {
	if w.Epoch() == e-1 && !mutant.Is(mutant.NoYoung) {
		return MakeWord(e, RetiredYoung)
	}
	return MakeWord(e, RetiredOld)
}

// Judge decides a word's fate after a crash with boundary b, and returns the
// word the block is to have from then on. A payload that is live again is
// labelled b: its old label is not known any more, and b counts. A discarded one
// keeps its epoch: should this recovery be killed, the next one must see that
// media may still have what the word replaces.
func (w Word) Judge(b uint64) (live bool, now Word) {
	e := w.Epoch()
	switch w.State() {
	case Live:
		if e <= b {
			return true, w
		}
		return false, MakeWord(e, Free)
	case RetiredOld:
		if e > b {
			return true, MakeWord(b, Live)
		}
	case RetiredYoung:
		if e == b+1 {
			return true, MakeWord(b, Live)
		}
		if e > b {
			return false, MakeWord(e, Free)
		}
	case Owned:
		return true, w
	}
	return false, w
}
