//go:build tidemark_mutants

package hashmap_test

import (
	"testing"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// caughtBy names, for each mutant, a history that finds it. The map changes no
// payload in place, so package payload tests the mutant of that.
var caughtBy = map[string]struct {
	history string
	c       crashsim.Config
}{
	mutant.PayloadNotWrittenBack: {"as", flavors[2]},
	mutant.RetireNotWrittenBack:  {"as", flavors[0]},
	mutant.FreeNotWrittenBack:    {"xtut", flavors[2]},
	mutant.AbortNotWrittenBack:   {"uuttu", flavors[0]},
	mutant.ClockNotOrdered:       {"as", flavors[0]},
	mutant.ReuseEarly:            {"Ltdat", flavors[0]},
	mutant.NoScrub:               {"as", flavors[0]},
	mutant.ClockBeforeScrub:      {"as", flavors[0]},
	mutant.ClockNotRepersisted:   {"attdtt", flavors[0]},
	mutant.WordsNotRepersisted:   {"xtut", flavors[2]},
	mutant.NoStamp:               {"as(td+)ts", flavors[0]},
	mutant.NoYoung:               {"satdtt", flavors[0]},
	mutant.HeaderNotOrdered:      {"MttM", flavors[0]},
	mutant.WordsNotZeroed:        {"SttttMt", flavors[0]},
	mutant.NoUndo:                {"atuttt", flavors[0]},
	mutant.InnerHeadersKept:      {"LsdttttMtS", flavors[0]},
}

// Every mutant must be caught: else the crash tests would not notice if the rule
// it leaves out were broken.
func TestMutantsAreCaught(t *testing.T) {
	defer mutant.Set("")
	for _, name := range mutant.All {
		by, ok := caughtBy[name]
		if !ok && name == mutant.InPlaceAcrossEpochs {
			continue
		}
		t.Run(name, func(t *testing.T) {
			mutant.Set("")
			opt := crashsim.Options{Config: by.c, MaxImages: 24, NestedImages: 4, Seed: 1}
			if _, err := explore(opt, []step(by.history)); err != nil {
				t.Fatalf("without the mutant: %v", err)
			}
			mutant.Set(name)
			rep, err := explore(opt, []step(by.history))
			if err == nil {
				t.Fatalf("not caught by %q on %s: %v", by.history, flavorName(by.c), rep)
			}
			t.Logf("caught after %d images by %q on %s: %.300v", rep.Checked, by.history, flavorName(by.c), err)
		})
	}
}
