//go:build unix && tidemark_mutants

package torture

import (
	"testing"

	"github.com/tidemark-db/tidemark/internal/mutant"
)

func init() { setMutant = mutant.Set }

// Of the rules that a kill alone can show to be broken (a killed process loses no
// store, so a missing write-back or order does not show), each must be missed.
func TestMutants(t *testing.T) {
	for _, name := range []string{mutant.NoStamp, mutant.NoYoung, mutant.ReuseEarly, mutant.NoScrub, mutant.NoUndo} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.mutant = name
			for i := range 300 {
				if err := h.round(i); err != nil {
					t.Logf("caught after %d kills: %.300v", h.killed, err)
					return
				}
			}
			t.Errorf("not caught in %d kills", h.killed)
		})
	}
}
