package payload_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/persist/crashsim"
)

var crashNeed = flag.Bool("crash.need", false, "look for write-backs, orders and fences that no test needs")

// siteName names a site by what is there, not by its line, which moves.
func siteName(t *testing.T, s crashsim.Site) string {
	at, line, _ := strings.Cut(s.At, ":")
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(filepath.Join("..", at))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, at, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	in := ""
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && set.Position(d.Pos()).Line <= n && n <= set.Position(d.End()).Line {
			in = d.Name.Name
		}
	}
	text := strings.TrimSpace(strings.Split(string(src), "\n")[n-1])
	return fmt.Sprintf("%s.%s: %s", filepath.Dir(at), in, text)
}

// needHistories are what the sites are tried on.
var needHistories = []string{"!ntt", "((t+_]t", "q", "SM", "LttLtttM", "LsLttttMtWt", "LttLttLM", "StttM"}

// Each write-back, order and fence is there because a crash shows its loss, or for
// the reason given here.
func TestEveryWriteBackIsNeeded(t *testing.T) {
	if !*crashNeed {
		t.Skip("-crash.need is not set")
	}
	start := time.Now()
	defer func() { t.Log(time.Since(start)) }()
	for _, c := range []crashsim.Config{{Flavor: crashsim.Lines}, {Flavor: crashsim.Redo}} {
		t.Run(flavorName(c), func(t *testing.T) {
			caught := map[string]bool{}
			for _, h := range needHistories {
				x := &checker{seed: 1, every: h == "q" || h == "SM"}
				opt := crashsim.Options{Config: c, MaxImages: 8, NestedImages: 3, Seed: 1, Budget: 1000}
				if strings.ContainsAny(h, "LW") {
					opt.MaxImages = 40
				}
				if x.every {
					opt.Budget = 5000
				}
				x.prepare(&opt, h)
				results, err := crashsim.Need(opt, func(m *crashsim.Machine) error { return drive(m, x.reset(), h) }, x.check)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results {
					name := r.Kind.String() + " " + siteName(t, r.Site)
					caught[name] = caught[name] || r.Caught
				}
			}
			var have []string
			for name, yes := range caught {
				t.Logf("needed: %-5v %s", yes, name)
				if !yes {
					have = append(have, name)
				}
			}
			slices.Sort(have)
			for _, name := range have {
				if notNeeded[c.Flavor][name] == "" {
					t.Errorf("not needed by any test: %s", name)
				}
			}
			for name, why := range notNeeded[c.Flavor] {
				if !slices.Contains(have, name) {
					t.Errorf("needed, or gone, though it is said not to be: %s (%s)", name, why)
				}
			}
		})
	}
}

// notNeeded says why a site is there though no crash shows its loss.
var notNeeded = map[crashsim.Flavor]map[string]string{
	crashsim.Lines: {},
	crashsim.Redo:  {},
}
