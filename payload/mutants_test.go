//go:build tidemark_mutants

package payload_test

import (
	"flag"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

var mutantSurvey = flag.Bool("crash.survey", false, "list what catches each mutant")

// inPlaceAnyway reports whether the library was told to break rule L4.
func inPlaceAnyway() bool { return mutant.Is(mutant.InPlaceAcrossEpochs) }

// caughtBy names, for each mutant, a history and a flavour that find it. The rule
// that no-stamp leaves out is one for structures, not for payloads.
var caughtBy = map[string]struct {
	history string
	flavor  int
}{
	mutant.InPlaceAcrossEpochs:   {"ktt", 0},
	mutant.NoUndo:                {"xtt", 0},
	mutant.AbortNotWrittenBack:   {"(tnk_)tt", 0},
	mutant.PayloadNotWrittenBack: {"Mtt", 0},
	mutant.RetireNotWrittenBack:  {"tdtt", 0},
	mutant.FreeNotWrittenBack:    {"ngtt", 0},
	mutant.ReuseEarly:            {"LttLtttM", 4},
	mutant.NoYoung:               {"ett", 0},
	mutant.WordsNotZeroed:        {"SttttMt", 0},
	mutant.HeaderNotOrdered:      {"!ntt", 0},
	mutant.InnerHeadersKept:      {"LsLttttMtWt", 0},
	mutant.ClockNotOrdered:       {"ntt", 0},
	mutant.NoScrub:               {"ntt", 0},
	mutant.ClockBeforeScrub:      {"ntt", 0},
	mutant.ClockNotRepersisted:   {"dtt", 0},
	mutant.WordsNotRepersisted:   {"ngtt", 0},
}

// Every mutant must be caught: else the crash tests would not notice if the rule
// it leaves out were broken.
func TestMutantsAreCaught(t *testing.T) {
	defer mutant.Set("")
	for _, name := range mutant.All {
		if name == mutant.NoStamp {
			continue
		}
		t.Run(name, func(t *testing.T) {
			by, ok := caughtBy[name]
			if !ok {
				t.Fatal("no history is known to catch it")
			}
			c := flavors[by.flavor]
			mutant.Set("")
			opt := crashsim.Options{Config: c, MaxImages: 24, NestedImages: 4, Seed: 1}
			if _, err := (&checker{every: true}).explore(opt, by.history); err != nil {
				t.Fatalf("without the mutant: %v", err)
			}
			mutant.Set(name)
			start := time.Now()
			rep, err := (&checker{every: true}).explore(opt, by.history)
			if err == nil {
				t.Fatalf("not caught by %q on %s: %v", by.history, flavorName(c), rep)
			}
			t.Logf("caught after %.3f s and %d images by %q on %s: %.300v", time.Since(start).Seconds(), rep.Checked, by.history, flavorName(c), err)
		})
	}
}

// All histories and flavours that catch a mutant; run by name to choose among them.
func TestWhatCatchesMutants(t *testing.T) {
	if !*mutantSurvey {
		t.Skip("-crash.survey is not set")
	}
	defer mutant.Set("")
	for _, name := range mutant.All {
		for _, c := range flavors {
			for _, h := range histories {
				mutant.Set(name)
				start := time.Now()
				rep, err := explore(crashsim.Options{Config: c, MaxImages: 12, NestedImages: 3, Seed: 1, Budget: 3000}, h)
				if d := time.Since(start); err != nil && d < time.Second {
					t.Logf("%s: %q on %s, %v, %d images: %.120v", name, h, flavorName(c), d, rep.Checked, err)
					break
				}
			}
		}
	}
}
