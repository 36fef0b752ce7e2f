package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/tidemark-db/tidemark"
)

// runMap is the hash map workload of Montage (ICPP 2021), section 6.3. Every
// engine holds its map all the time, and within a round each runs each mix for
// a short while, in turn, so that what the machine does besides hits all alike;
// the order is reversed every other round.
func runMap(args []string) error {
	c := newCommon("map")
	keys := c.Uint64("range", 1_000_000, "keys are below it; half of them are preloaded")
	values := c.ints("value", "1024,64", "bytes of a value")
	mixes := addList(c, "mix", "0:1:1,2:1:1,18:1:1", "get:insert:remove", parseMix)
	goroutines := c.ints("goroutines", "1,2,8", "how many goroutines")
	procs := c.Int("procs", 2, "GOMAXPROCS is one for each goroutine, but at most this")
	spare := c.Int("spare", 0, "GOMAXPROCS besides that of the goroutines, for the clock, up to -procs")
	names := c.words("engines", "buffered,transient,xsync", "engines, of buffered, transient, xsync and none")
	domains := c.domains("process,emulated")
	duration := c.Duration("duration", 2*time.Second, "of one run")
	rounds := c.Int("rounds", 5, "rounds that count")
	warmup := c.Int("warmup", 1, "rounds before, that do not")
	epoch := c.Duration("epoch", 10*time.Millisecond, "epoch length")
	latency := c.Duration("latency", 0, "added to each fence of the emulated domain")
	refName := c.String("ref", "montage", "reference to compare with: montage or none")
	seed := c.Uint64("seed", 1, "of the random numbers")
	if err := c.parse(args); err != nil {
		return err
	}
	ref, ok := references[*refName]
	switch {
	case !ok:
		return fmt.Errorf("no reference %q", *refName)
	case *keys < 2 || *keys > maxKeys:
		return fmt.Errorf("-range: want 2 to %d", uint64(maxKeys))
	case *rounds < 1 || *warmup < 0 || *procs < 1 || *spare < 0 || slices.Min(goroutines.vals) < 1 || slices.Min(values.vals) < 0:
		return errors.New("-rounds, -procs and -goroutines must be at least 1, -warmup, -spare and -value at least 0")
	}
	dir, cleanup, err := c.tempDir()
	if err != nil {
		return err
	}
	defer cleanup()
	b := mapBench{dir: dir, procs: *procs, spare: *spare, rounds: *rounds, warmup: *warmup, refName: *refName, ref: ref}
	b.setup = setup{epoch: *epoch, latency: *latency, entries: int(*keys / 2)}
	b.load = load{keys: *keys, seed: *seed, duration: *duration}
	rep := c.begin()
	if ref.about != "" && *keys != ref.keys {
		progress("no comparison with %s: its range is %d", *refName, ref.keys)
		b.ref = reference{}
	}
	for _, value := range values.vals {
		var cells []cell
		for _, g := range goroutines.vals {
			for _, m := range mixes.vals {
				cells = append(cells, cell{value, m, g})
			}
		}
		if err := b.measure(value, cells, names.vals, domains.vals); err != nil {
			return err
		}
	}
	b.print()
	rep.Results = b.results
	return c.finish(rep)
}

type mapBench struct {
	dir            string
	setup          setup
	load           load
	procs, spare   int
	rounds, warmup int
	refName        string
	ref            reference
	results        []*mapResult
	warnings       warnings
}

// mapResult is one engine in one cell.
type mapResult struct {
	cell
	Engine    string   `json:"engine"`
	Mops      summary  `json:"mops"`
	Effects   summary  `json:"effects"`             // share of operations that had one
	Ratio     *summary `json:"ratio,omitempty"`     // to transient, round by round
	Reference float64  `json:"reference,omitempty"` // Mops of the reference
	Factor    float64  `json:"factor,omitempty"`    // median to the reference
}

// resident is an engine that is open.
type resident struct {
	engine
	name    string
	durable bool
}

const transientName = "transient"

func (b *mapBench) measure(value int, cells []cell, names []string, domains []tidemark.Domain) (err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(b.procs))
	open, err := b.open(names, domains)
	defer func() {
		for _, e := range open {
			err = errors.Join(err, e.close())
		}
	}()
	if err != nil {
		return err
	}
	for _, e := range open {
		begin := time.Now()
		if err := preload(e, b.load.keys, value, b.load.seed); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		progress("%s: %d values of %d bytes preloaded in %.1fs", e.name, b.load.keys/2, value, time.Since(begin).Seconds())
	}
	runs := time.Duration((b.warmup + b.rounds) * len(cells) * len(open))
	progress("%d rounds of %d runs take %v", b.warmup+b.rounds, len(cells)*len(open), runs*(b.load.duration+settleTime))
	mops, effects := map[*mapResult][]float64{}, map[*mapResult][]float64{}
	results := make([][]*mapResult, len(cells))
	for i, c := range cells {
		for _, e := range open {
			results[i] = append(results[i], &mapResult{cell: c, Engine: e.name})
		}
	}
	for round := range b.warmup + b.rounds {
		for i, c := range cells {
			for k := range open {
				if round%2 == 1 {
					k = len(open) - 1 - k
				}
				t, err := b.run(open[k], c, uint64(round))
				if err != nil {
					return fmt.Errorf("%s, %v: %w", open[k].name, c, err)
				}
				if r := results[i][k]; round >= b.warmup {
					mops[r] = append(mops[r], t.mops())
					effects[r] = append(effects[r], float64(t.effects)/float64(t.ops))
				}
			}
		}
		progress("round %d of %d done", round+1, b.warmup+b.rounds)
	}
	for _, cell := range results {
		for _, r := range cell {
			r.Mops, r.Effects = summarize(mops[r]), summarize(effects[r])
		}
		b.compare(cell, open)
		b.results = append(b.results, cell...)
	}
	return nil
}

// open opens every engine: those that are durable, once for each domain.
func (b *mapBench) open(names []string, domains []tidemark.Domain) (open []resident, err error) {
	for _, name := range names {
		kind, err := findEngine(name)
		if err != nil {
			return open, err
		}
		n := 1
		if kind.durable {
			n = len(domains)
		}
		for i := range n {
			s, full := b.setup, name
			if kind.durable {
				s.domain = domains[i]
				full += "/" + domainName(s.domain)
			}
			s.dir = heapDir(b.dir, full)
			e, err := kind.open(s)
			if err != nil {
				return open, fmt.Errorf("%s: %w", full, err)
			}
			open = append(open, resident{e, full, kind.durable})
		}
	}
	return open, nil
}

func (b *mapBench) maxProcs(c cell) int { return min(b.procs, c.Goroutines+b.spare) }

// settleTime is some epochs, in which the clocks get idle.
const settleTime = 50 * time.Millisecond

func (b *mapBench) run(e resident, c cell, round uint64) (tally, error) {
	runtime.GOMAXPROCS(b.maxProcs(c))
	l := b.load
	l.mix, l.value, l.goroutines = c.Mix, c.Value, c.Goroutines
	l.seed += round + 1
	runtime.GC()
	time.Sleep(settleTime)
	t, err := l.run(e)
	if err == nil {
		err = e.settle()
	}
	return t, err
}

// compare fills in ratios and factors of one cell's results.
func (b *mapBench) compare(results []*mapResult, open []resident) {
	base := slices.IndexFunc(results, func(r *mapResult) bool { return r.Engine == transientName })
	for i, r := range results {
		what := fmt.Sprintf("%d bytes, %v, %d goroutines, %s", r.Value, r.Mix, r.Goroutines, r.Engine)
		b.warnings.spread(what, r.Mops)
		if e := r.Effects.Median; r.Engine != "none" && (e < 0.4 || e > 0.6) {
			b.warnings.add("%s: %.0f %% of operations had an effect; half should have", what, 100*e)
		}
		if !open[i].durable {
			continue
		}
		if base >= 0 {
			var ratios []float64
			for k, m := range r.Mops.Rounds {
				ratios = append(ratios, m/results[base].Mops.Rounds[k])
			}
			s := summarize(ratios)
			r.Ratio = &s
		}
		if m := b.ref.mops[r.cell]; m > 0 {
			r.Reference, r.Factor = m, r.Mops.Median/m
		}
	}
}

func (b *mapBench) print() {
	fmt.Printf("\nMops/s: median [min..max] of %d rounds of %v; ! marks max/min over %v.\n", b.rounds, b.load.duration, spreadLimit)
	fmt.Printf("Ratio: to %s in the same round, median [min..max]. Epochs of %v.\n", transientName, b.setup.epoch)
	if b.ref.about != "" {
		fmt.Printf("Factor: median to %s (%s).\n", b.refName, b.ref.about)
	}
	t := newTable("value", "mix", "goroutines", "GOMAXPROCS", "engine", "Mops/s", "ratio", "reference", "factor")
	for _, r := range b.results {
		ratio, ref, factor := "", "", ""
		if r.Ratio != nil {
			ratio = r.Ratio.String()
		}
		if r.Reference > 0 {
			ref, factor = fmt.Sprintf("%.2f", r.Reference), fmt.Sprintf("%.2f", r.Factor)
		}
		t.row(fmt.Sprint(r.Value), r.Mix.String(), fmt.Sprint(r.Goroutines), fmt.Sprint(b.maxProcs(r.cell)), r.Engine, r.Mops.String(), ratio, ref, factor)
	}
	t.flush()
	fmt.Println("\nRatios of single rounds:")
	for _, r := range b.results {
		if r.Ratio != nil {
			fmt.Printf("  %d B, %v, %d goroutines, %s:", r.Value, r.Mix, r.Goroutines, r.Engine)
			for _, x := range r.Ratio.Rounds {
				fmt.Printf(" %.3f", x)
			}
			fmt.Println()
		}
	}
	b.warnings.print()
}
