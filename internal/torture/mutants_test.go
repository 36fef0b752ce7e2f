//go:build unix && tidemark_mutants

package torture

import (
	"testing"

	"github.com/tidemark-db/tidemark/internal/mutant"
)

func init() { setMutant = mutant.Set }

// The rules whose absence a kill can show, within few kills. A killed process
// loses no store, so a missing write-back or order does not show; and no-stamp
// (H2) shows only if the kill hits one epoch of many, some hundred kills apart.
func TestMutants(t *testing.T) {
	for _, name := range []string{mutant.NoYoung, mutant.ReuseEarly, mutant.NoScrub, mutant.NoUndo} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.mutant = name
			for i := range 100 {
				if err := h.round(i); err != nil {
					t.Logf("caught after %d kills: %.300v", h.killed, err)
					return
				}
			}
			t.Errorf("not caught in %d kills", h.killed)
		})
	}
}
