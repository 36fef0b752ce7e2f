//go:build tidemark_mutants

package hashmap_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// Every mutant must be caught by some history, in some flavour: else the crash
// tests would not notice if the rule it leaves out were broken.
func TestMutantsAreCaught(t *testing.T) {
	defer mutant.Set("")
	for _, name := range mutant.All {
		if name == mutant.InPlaceAcrossEpochs {
			continue // the map never changes a payload in place: package payload tests it
		}
		t.Run(name, func(t *testing.T) {
			mutant.Set(name)
			images := 0
			try := func(c crashsim.Config, h []step, seed uint64) bool {
				rep, err := explore(crashsim.Options{Config: c, MaxImages: 24, NestedImages: 4, Seed: seed}, h)
				images += rep.Checked
				if err != nil {
					t.Logf("caught after %d images by %q on %s: %.300v", images, string(h), flavorName(c), err)
				}
				return err != nil
			}
			for _, h := range histories {
				for _, c := range flavors[:3] {
					if try(c, []step(h), 1) {
						return
					}
				}
			}
			for seed := range uint64(30) {
				for _, c := range flavors[:3] {
					if try(c, randomHistory(rand.New(rand.NewPCG(seed, 1)), 14), seed) {
						return
					}
				}
			}
			t.Errorf("not caught by %d images", images)
		})
	}
}
