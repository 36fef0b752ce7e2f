package payload_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
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

// needHistories are what the sites are tried on, until one shows their loss.
var needHistories = []string{"((t+_]t", "nxtvt", "!ntt", "LttLtttM", "StttM", "LsLttttMtWt"}

// need drops what each site does, in turn, and removes from open the sites whose
// loss the history shows.
func need(t *testing.T, c crashsim.Config, h string, open map[string]bool) {
	x := &checker{seed: 1}
	opt := crashsim.Options{Config: c, MaxImages: 8, NestedImages: 3, Seed: 1, Budget: 1500}
	if strings.ContainsAny(h, "LW") {
		opt.MaxImages = 40
	}
	x.prepare(&opt, h)
	opt.Sites = true
	var m *crashsim.Machine
	run := func() error {
		_, err := crashsim.Explore(opt, func(n *crashsim.Machine) (err error) {
			m = n
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			return drive(n, x.reset(), h)
		}, x.check)
		return err
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	for site := range m.SiteCounts() {
		name := site.Kind.String() + " " + siteName(t, site)
		if known, ok := open[name]; ok && !known {
			continue
		}
		opt.Drop = func(kind crashsim.Kind, at string, _ int) bool { return kind == site.Kind && at == site.At }
		open[name] = run() == nil
	}
}

// Each write-back, order and fence is there because a crash shows its loss, or for
// the reason given here.
func TestEveryWriteBackIsNeeded(t *testing.T) {
	if !*crashNeed {
		t.Skip("-crash.need is not set")
	}
	for _, c := range []crashsim.Config{{Flavor: crashsim.Lines}, {Flavor: crashsim.Redo}} {
		t.Run(flavorName(c), func(t *testing.T) {
			t.Parallel()
			open := map[string]bool{}
			for _, h := range needHistories {
				start := time.Now()
				need(t, c, h, open)
				left := 0
				for _, yes := range open {
					if yes {
						left++
					}
				}
				t.Logf("%q: %v, %d of %d sites left", h, time.Since(start).Round(time.Second), left, len(open))
			}
			for name, yes := range open {
				if yes && notNeeded[c.Flavor][name] == "" {
					t.Errorf("not needed by any test: %s", name)
				}
			}
			for name, why := range notNeeded[c.Flavor] {
				if !open[name] {
					t.Errorf("needed, or gone, though it is said not to be: %s (%s)", name, why)
				}
			}
		})
	}
}

// notNeeded says why a site is there though no crash shows its loss.
var notNeeded = map[crashsim.Flavor]map[string]string{
	crashsim.Lines: onBoth,
	crashsim.Redo: merge(onBoth, map[string]string{
		"write-back epoch.advance: s.h.WriteBack(persist.ClockOff, 8)": aRecord,
		"write-back recovery.Heap: h.WriteBack(persist.ClockOff, 8)":   aRecord,
		"write-back alloc.newSuperblock: a.h.WriteBack(off, 8)":        aRecord,
		"order epoch.advance: s.h.Order()":                             inSequence,
		"order alloc.releaseLocked: a.h.Order()":                       inSequence,
		"fence alloc.newSuperblock: if err := a.h.Fence(); err != nil {": "a crash must keep the contents of a unit and no header before it, " +
			"too rare among the images of a large block to be sampled",
		"fence recovery.fence: if err := h.Fence(); err != nil {": "the next fence makes the whole log durable, and nothing is acknowledged before it",
	}),
}

const (
	hint       = "the word is a hint, or looked at by Verify alone"
	threeTimes = "an owner's number must be used again, after a kill in the recovery that gave it up, and before a power loss"
	reused     = "whoever uses the units again takes the header away durably, before any other unit of the superblock is handed out"
	aRecord    = "an ordered store is a record of the log by itself"
	inSequence = "the fence behind it puts the same records into the log in the same sequence"
)

var onBoth = map[string]string{
	"write-back recovery.Heap: h.WriteBack(persist.CleanOff, 8)":   "a clean word names its clock, which the clock store leaves behind",
	"write-back recovery.Heap: h.WriteBack(persist.SizeOff, 8)":    hint,
	"write-back recovery.Heap: r.SetBootID(&h)":                    hint,
	"order recovery.Heap: h.Order()":                               "it covers those three",
	"order alloc.Disown: a.h.Order()":                              threeTimes,
	"write-back alloc.Scan: a.h.WriteBack(persist.Off(u)*unit, 8)": threeTimes,
	"order alloc.Scan: return nil":                                 threeTimes,
	"write-back alloc.releaseLocked: a.h.WriteBack(sb.off(), 8)":   reused,
	"fence alloc.releaseLocked: if a.h.Fence() != nil {":           reused,
	"write-back alloc.newSuperblock: a.h.WriteBack(off+persist.Off(u)*unit, 8)": "a word must be dead in a cache only, its superblock be cut anew, " +
		"and a kill come between the two, with two more epochs before a power loss",
}

func merge(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}
