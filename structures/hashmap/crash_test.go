package hashmap_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/internal/history"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

var (
	crashHistories = flag.Int("crash.histories", 15, "random histories of the crash tests, for each flavour")
	crashWide      = flag.Bool("crash.wide", false, "random histories with values that take superblocks and runs of their own")
	crashImages    = flag.Int("crash.images", 3, "images tried at each crash point of the fixed histories")
	crashSeed      = flag.Uint64("crash.seed", 1, "seed of the first of them")
)

var ctx = context.Background()

// world is two maps on a simulated machine, and what is known of them.
type world struct {
	h    *tidemark.Heap
	m    map[string]*hashmap.Map
	o    *history.Oracle
	late *lateOp
	seq  int
}

// lateOp is an operation that has begun and goes on while others run and the
// clock ticks.
type lateOp struct {
	op      tidemark.Op
	changes []history.Change
}

func openWorld(m *crashsim.Machine, o *history.Oracle) (*world, error) {
	r, err := persist.NewSimulated(m)
	if err != nil {
		return nil, err
	}
	h, err := tidemark.OpenRegion(ctx, r, &tidemark.Options{EpochLength: tidemark.Manual, RecoveryWorkers: 1})
	if err != nil {
		return nil, err
	}
	return &world{h: h, m: map[string]*hashmap.Map{}, o: o}, nil
}

// open opens a map, which it records as made if it was not there.
func (w *world) open(name string) error {
	fresh := true
	for _, s := range w.h.Structures() {
		fresh = fresh && s.Name != name
	}
	m, err := hashmap.Open(w.h, name, nil)
	if err != nil {
		return err
	}
	w.m[name] = m
	if fresh {
		w.o.Ended(w.h.Epoch(), history.Change{Key: name})
	}
	return nil
}

// state reads what is there: the maps, and their entries as "map/key".
func (w *world) state() (map[string]string, error) {
	s := map[string]string{}
	for _, i := range w.h.Structures() {
		s[i.Name] = ""
		m := w.m[i.Name]
		if m == nil {
			var err error
			if m, err = hashmap.Open(w.h, i.Name, nil); err != nil {
				return nil, err
			}
			w.m[i.Name] = m
		}
		n := 0
		for k, v := range m.All() {
			s[i.Name+"/"+string(k)] = string(v)
			n++
		}
		if m.Len() != n {
			return nil, fmt.Errorf("map %s has %d entries and says %d", i.Name, n, m.Len())
		}
	}
	return s, nil
}

func (w *world) value(size int) string {
	w.seq++
	v := fmt.Sprint(w.seq, "-")
	return v + strings.Repeat(string('a'+rune(w.seq%26)), max(size-len(v), 0))
}

// A step is one letter of a history.
type step = byte

const (
	putA   step = 'a' // set one key of map a
	putA2  step = 'c' // another one
	putB   step = 'b' // of map b
	delA   step = 'd'
	both   step = 'x' // one operation over both maps
	undone step = 'u' // one that fails half-way
	begin  step = '(' // an operation that changes b and goes on
	more   step = '+' // it changes a as well
	end    step = ')'
	tick   step = 't'
	syncs  step = 's'
	bigA   step = 'L' // a value that takes units of its own
	shrink step = 'S' // a larger class, freed again: superblocks change hands
	mid    step = 'M' // values of another class yet
	dropB  step = 'D'
)

var errUndone = errors.New("undone")

func (w *world) run(steps []step) error {
	for _, s := range steps {
		if err := w.step(s); err != nil {
			return fmt.Errorf("step %c: %w", s, err)
		}
	}
	if w.late != nil {
		w.late.op.Abort()
		w.late = nil
	}
	return nil
}

func (w *world) step(s step) error {
	switch s {
	case putA, putA2, bigA:
		size := 4
		if s == bigA {
			size = 300 << 10
		}
		return w.put("a", map[bool]string{true: "k", false: "l"}[s != putA2], w.value(size))
	case putB:
		return w.put("b", "k", w.value(4))
	case delA:
		if _, err := w.m["a"].Delete([]byte("k")); err != nil {
			return w.refused(err)
		}
		w.o.Ended(w.h.Epoch(), history.Change{Key: "a/k", Gone: true})
	case both, undone:
		v := w.value(4)
		err := w.h.Do(func(op tidemark.Op) error {
			if err := w.m["a"].In(op).Put([]byte("k"), []byte(v)); err != nil {
				return w.refused(err)
			}
			if _, err := w.m["a"].In(op).Delete([]byte("l")); err != nil {
				return w.refused(err)
			}
			if b := w.m["b"]; b != nil {
				if err := b.In(op).Put([]byte("k"), []byte(v)); err != nil {
					return w.refused(err)
				}
			}
			if s == undone {
				return errUndone
			}
			return nil
		})
		if errors.Is(err, errUndone) {
			return nil
		}
		if err == nil {
			c := []history.Change{{Key: "a/k", Val: v}, {Key: "a/l", Gone: true}}
			if w.m["b"] != nil {
				c = append(c, history.Change{Key: "b/k", Val: v})
			}
			w.o.Ended(w.h.Epoch(), c...)
		}
		return err
	case begin:
		if w.late == nil {
			w.late = &lateOp{op: w.h.Begin()}
			return w.lateChange("b", "m")
		}
	case more:
		if w.late != nil {
			return w.lateChange("a", "k")
		}
	case end:
		if w.late != nil {
			e := w.late.op.Epoch()
			w.late.op.End()
			w.o.Ended(e, w.late.changes...)
			w.late = nil
		}
	case tick, syncs:
		if w.late != nil && w.late.op.Epoch() < w.h.Epoch() {
			return w.step(end) // it holds the clock
		}
		if s == syncs && w.late != nil {
			if err := w.step(end); err != nil {
				return err
			}
		}
		f := w.h.Tick
		if s == syncs {
			f = w.h.Sync
		}
		if err := f(ctx); err != nil {
			return err
		}
		w.o.Acked(w.h.DurableEpoch())
	case shrink:
		for i := range 4 {
			if err := w.put("a", fmt.Sprint("s", i), w.value(20<<10)); err != nil {
				return err
			}
		}
		for i := range 4 {
			k := fmt.Sprint("s", i)
			if _, err := w.m["a"].Delete([]byte(k)); err != nil {
				return w.refused(err)
			}
			w.o.Ended(w.h.Epoch(), history.Change{Key: "a/" + k, Gone: true})
		}
	case mid:
		return w.put("a", "m", w.value(1000))
	case dropB:
		if w.m["b"] == nil || w.late != nil {
			return nil
		}
		if err := w.m["b"].Close(); err != nil {
			return err
		}
		delete(w.m, "b")
		// Everything of b goes in one operation, which Drop then syncs.
		c := []history.Change{{Key: "b", Gone: true}}
		for k := range w.o.State(1 << 62) {
			if strings.HasPrefix(k, "b/") {
				c = append(c, history.Change{Key: k, Gone: true})
			}
		}
		w.o.Ended(w.h.Epoch(), c...)
		if err := w.h.Drop(ctx, "b"); err != nil {
			return err
		}
		w.o.Acked(w.h.DurableEpoch())
		return w.open("b")
	}
	return nil
}

func (w *world) put(m, k, v string) error {
	if w.m[m] == nil {
		return nil
	}
	if w.late != nil && w.holds(m+"/"+k) {
		return nil
	}
	if err := w.m[m].Put([]byte(k), []byte(v)); err != nil {
		return err
	}
	w.o.Ended(w.h.Epoch(), history.Change{Key: m + "/" + k, Val: v})
	return nil
}

// holds reports whether the late operation has a key, which others must wait for.
func (w *world) holds(key string) bool {
	for _, c := range w.late.changes {
		if c.Key == key {
			return true
		}
	}
	return false
}

// refused turns the refusal of an operation into nothing done.
func (w *world) refused(err error) error {
	if errors.Is(err, tidemark.ErrConflict) && w.late != nil {
		return errUndone
	}
	return err
}

func (w *world) lateChange(m, k string) error {
	if w.m[m] == nil {
		return nil
	}
	v := w.value(4)
	err := w.m[m].In(w.late.op).Put([]byte(k), []byte(v))
	switch {
	case errors.Is(err, tidemark.ErrOldSeesNew):
		w.late.op.Abort()
		w.late = nil
		return nil
	case err == nil:
		w.late.changes = append(w.late.changes, history.Change{Key: m + "/" + k, Val: v})
	}
	return err
}

// explore runs a history on a simulated machine and checks every crash image. A
// history that starts with '!' is crashed while the heap and its maps are made, too.
func explore(opt crashsim.Options, steps []step) (crashsim.Report, error) {
	var o *history.Oracle
	opt.Size = 24 << 16
	opt.Kills = opt.Depth >= 0
	opt.Key = func() uint64 { return o.Version() }
	x := &checker{seed: opt.Seed}
	return crashsim.Explore(opt, func(m *crashsim.Machine) error {
		o = history.New(nil)
		x.o = o
		var w *world
		var err error
		create := func() {
			if w, err = openWorld(m, o); err == nil {
				err = errors.Join(w.open("a"), w.open("b"))
			}
		}
		if steps[0] == '!' {
			steps = steps[1:]
			create()
		} else {
			m.Quiet(create)
			m.Checkpoint()
		}
		if err != nil {
			return err
		}
		if err := w.run(steps); err != nil && !errors.Is(err, errUndone) {
			return err
		}
		if u := m.Unannounced(); len(u) > 0 {
			return fmt.Errorf("stores to %#x and %d more words were not announced", u[0], len(u)-1)
		}
		return nil
	}, x.check)
}

// checker checks images of one exploration.
type checker struct {
	o      *history.Oracle
	seed   uint64
	bounds []uint64 // boundary of the crash at each depth
}

// check recovers, compares with the oracle, works on, and crashes again. A crash
// in a recovery leaves what that recovery had decided, though it may have moved
// the clock already.
func (x *checker) check(m *crashsim.Machine, c crashsim.Crash) error {
	b := boundary(m)
	if c.Depth > 0 {
		b = min(b, x.bounds[c.Depth-1])
	}
	x.bounds = append(x.bounds[:c.Depth], b)
	// Every image is recovered; a sample also crashes in its recovery, or is
	// worked on and crashed again.
	pick := fnv.New32a()
	fmt.Fprint(pick, c.Event.N, c.Choice)
	luck := pick.Sum32() % 8
	if c.Depth == 0 && luck != 0 && c.Choice != "kill" {
		m.Recovered()
	}
	w, err := openWorld(m, x.o)
	if err != nil {
		return err
	}
	m.Recovered()
	have, err := w.state()
	if err != nil {
		return err
	}
	if err := x.o.Check(b, have); err != nil {
		return err
	}
	if c.Depth > 0 || luck > 1 && c.Choice != "kill" {
		return nil
	}
	// A second generation: what is free must be, and what counts must stay.
	w.o = x.o.Next(b)
	w.seq = 1000
	for _, name := range []string{"a", "b"} {
		if w.m[name] == nil {
			if err := w.open(name); err != nil {
				return err
			}
		}
	}
	for i := range 3 {
		if err := w.run([]step{putA, putB, tick, delA}[i%3 : i%3+2]); err != nil {
			return err
		}
		if err := again(m, w.o, x.seed); err != nil {
			return fmt.Errorf("second crash, after %d rounds: %w", i+1, err)
		}
	}
	return nil
}

// boundary reads from a machine which epochs count.
func boundary(m *crashsim.Machine) uint64 {
	if m.Size() == 0 {
		return 0
	}
	clock, _ := persist.Unseal(binary.LittleEndian.Uint64(m.Memory()[persist.ClockOff:]))
	return max(clock, 2) - 2
}

// again crashes the machine into a few images and recovers each.
func again(m *crashsim.Machine, o *history.Oracle, seed uint64) error {
	for choice, image := range m.Images(4, rand.New(rand.NewPCG(seed, 7))) {
		w, err := openWorld(image, o)
		if err != nil {
			return fmt.Errorf("image %s: %w", choice, err)
		}
		have, err := w.state()
		if err != nil {
			return fmt.Errorf("image %s: %w", choice, err)
		}
		if err := o.Check(w.h.Metrics().Recovery.Boundary, have); err != nil {
			return fmt.Errorf("image %s: %w", choice, err)
		}
		image.Release()
	}
	return nil
}

var flavors = []crashsim.Config{
	{Flavor: crashsim.Lines}, {Flavor: crashsim.Lines, Words: true},
	{Flavor: crashsim.Redo}, {Flavor: crashsim.Redo, Words: true},
	{Flavor: crashsim.Process},
}

func flavorName(c crashsim.Config) string {
	if c.Words {
		return c.Flavor.String() + "+words"
	}
	return c.Flavor.String()
}

// Short histories that have hurt or could; every crash point, and every image
// below the cap.
var histories = []string{
	"as", "adt", "atda", "attdtt", "abxt", "xtut", "a(t+)t", "(dt+)tt", "atd(a+t)s", "atauta",
	"cxdct", "attattat", "atdatdts", "Ltdat", "LsdtttL", "SttttcSt", "!at", "abstDbt", "SttttMt", "LsdttttMtS", "MttMdt", "sSttttLtt", "uuttu", "(t)tu(+)s",
}

// wide steps write so many words that deciding on each is slow and shows nothing
// that deciding on lines does not.
const wide = "LSM"

func TestCrashEveryHistory(t *testing.T) {
	for _, c := range flavors {
		t.Run(flavorName(c), func(t *testing.T) {
			t.Parallel()
			var total crashsim.Report
			for i, h := range histories {
				if c.Words && strings.ContainsAny(h, wide) || testing.Short() && (i%4 > 0 || strings.ContainsAny(h, wide)) {
					continue
				}
				rep, err := explore(crashsim.Options{Config: c, MaxImages: *crashImages, NestedImages: 3, Seed: *crashSeed}, []step(h))
				if err != nil {
					t.Fatalf("history %q: %v", h, err)
				}
				add(&total, rep)
			}
			t.Log(total)
		})
	}
}

func add(to *crashsim.Report, r crashsim.Report) {
	to.Events += r.Events
	to.Points += r.Points
	to.Same += r.Same
	to.Skipped += r.Skipped
	to.Sampled += r.Sampled
	to.Images += r.Images
	to.Checked += r.Checked
	to.Nested += r.Nested
	to.Left = max(to.Left, to.Left+r.Left)
	to.MaxFan = max(to.MaxFan, r.MaxFan)
}

func randomHistory(rnd *rand.Rand, n int, narrow bool) []step {
	weights := "aaaaccbbbddddxxu((++))tttttttssDSLM"
	if narrow {
		weights = strings.TrimRight(weights, wide)
	}
	s := make([]step, n)
	for i := range s {
		s[i] = step(weights[rnd.IntN(len(weights))])
	}
	return s
}

func TestCrashRandomHistories(t *testing.T) {
	for _, c := range flavors {
		t.Run(flavorName(c), func(t *testing.T) {
			t.Parallel()
			var total crashsim.Report
			n := uint64(*crashHistories)
			if testing.Short() {
				n = min(n, 2)
			}
			for i := range n {
				seed := *crashSeed + i
				steps := randomHistory(rand.New(rand.NewPCG(seed, 1)), 14, c.Words || !*crashWide)
				rep, err := explore(crashsim.Options{Config: c, MaxImages: 12, NestedImages: 3, Every: 0.5, Seed: seed}, steps)
				if err != nil {
					t.Fatalf("seed %d, history %q: %v", seed, string(steps), err)
				}
				add(&total, rep)
			}
			t.Log(total)
		})
	}
}

// Histories of 3 to 5 operations over two maps, every crash point, every image:
// nothing is sampled, and nothing left. (Crashes in recovery have too many images
// for that; the other tests sample them.)
func TestCrashExhaustively(t *testing.T) {
	for i, h := range []string{
		"abt", "adt", "xut", "at(d)", "axdt", "cxdt", "abxt", "atdt", "axut", "a(t+)", "atadt", "abttd", "btxdt", "xtxtt", "abdus",
	} {
		if testing.Short() && i%4 > 0 {
			continue
		}
		for _, c := range []crashsim.Config{{Flavor: crashsim.Lines}, {Flavor: crashsim.Redo}} {
			opt := crashsim.Options{Config: c, MaxImages: 1 << 20, Depth: -1, Seed: *crashSeed}
			rep, err := explore(opt, []step(h))
			if err != nil {
				t.Fatalf("history %q on %s: %v", h, flavorName(c), err)
			}
			if rep.Left > 0 || rep.Sampled > 0 {
				t.Errorf("history %q on %s is not exhausted", h, flavorName(c))
			}
			t.Logf("%q on %s: %v", h, flavorName(c), rep)
		}
	}
}
