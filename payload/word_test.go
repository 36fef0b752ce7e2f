package payload

import (
	"testing"

	"github.com/tidemark-db/tidemark/persist"
)

// judged says what may be expected of any word and boundary.
func judged(t *testing.T, w Word, b uint64) {
	t.Helper()
	live, now := w.Judge(b)
	if again, _ := w.Judge(b); again != live {
		t.Fatalf("%#x at %d: judged twice, differently", uint64(w), b)
	}
	if !w.Valid() {
		return
	}
	e := w.Epoch()
	if !now.Valid() {
		t.Fatalf("%#x at %d becomes %#x, which makes no sense", uint64(w), b, uint64(now))
	}
	switch s := w.State(); {
	case live && e > b && s == Live, live && s == Free, live && e <= b && s != Live && s != Owned:
		t.Fatalf("%v of %d is kept at boundary %d", s, e, b)
	case !live && s == Live && e <= b, !live && s == Owned, !live && s == RetiredOld && e > b, !live && s == RetiredYoung && e == b+1:
		t.Fatalf("%v of %d is given up at boundary %d", s, e, b)
	case live && s != Owned && now != MakeWord(min(e, b), Live):
		t.Fatalf("%v of %d is kept at boundary %d as %v of %d", s, e, b, now.State(), now.Epoch())
	case !live && now.State() == Live:
		t.Fatalf("%v of %d is given up at boundary %d and stays live", s, e, b)
	}
	// A recovery that is done again decides the same (R3), and so do all later ones.
	for _, later := range []uint64{b, b + 1, b + 2, b + 100, 1<<40 - 1} {
		if again, then := now.Judge(later); later >= b && (again != live || then != now) {
			t.Fatalf("%v of %d at %d is live %v as %v of %d; at %d it is live %v as %v of %d",
				w.State(), e, b, live, now.State(), now.Epoch(), later, again, then.State(), then.Epoch())
		}
	}
}

func TestJudgeAllNearWords(t *testing.T) {
	for b := uint64(1); b < 12; b++ {
		for e := uint64(1); e < 14; e++ {
			for s := Free; s <= Owned; s++ {
				judged(t, MakeWord(e, s), b)
			}
		}
	}
}

// What a deletion makes of a word, recovery undoes exactly as long as it does not
// count.
func TestRetirementIsUndoneByRecovery(t *testing.T) {
	for created := uint64(3); created < 9; created++ {
		for deleted := created + 1; deleted < 13; deleted++ {
			w := MakeWord(created, Live).retire(deleted)
			for b := deleted - min(deleted, 3); b < deleted+3; b++ {
				// A boundary so far back that the clock has been at the deletion's epoch
				// less than two ticks ago is all there can be.
				if deleted > b+2 {
					continue
				}
				live, _ := w.Judge(b)
				if want := created <= b && deleted > b; live != want {
					t.Fatalf("created in %d, deleted in %d, boundary %d: live %v", created, deleted, b, live)
				}
			}
		}
	}
}

func TestWordFlipsAreFound(t *testing.T) {
	for _, w := range []Word{MakeWord(1, Live), MakeWord(1<<53-1, RetiredYoung), MakeWord(0x123456789a, Owned)} {
		if !w.Valid() {
			t.Fatalf("%#x is not valid", uint64(w))
		}
		for bit := range 64 {
			if (w ^ 1<<bit).Valid() {
				t.Fatalf("bit %d of %#x", bit, uint64(w))
			}
		}
	}
}

func FuzzWord(f *testing.F) {
	for s := Free; s <= Owned; s++ {
		f.Add(uint64(MakeWord(7, s)), uint64(6))
	}
	f.Add(^uint64(0), uint64(1))
	f.Add(uint64(1), ^uint64(0))
	f.Fuzz(func(t *testing.T, w, b uint64) {
		_, _ = Word(w).Judge(b) // never panics
		b &= 1<<40 - 1
		judged(t, Word(w), b)
		judged(t, Word(persist.Seal(w&(1<<56-1))), b)
		e := w & (1<<40 - 1)
		judged(t, MakeWord(e, State(w>>60)%(Owned+1)), b)
	})
}
