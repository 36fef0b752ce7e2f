package crashsim

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Options tell how far to explore. Zero values give a thorough default.
type Options struct {
	Config

	// From is the machine whose volatile content, all of it durable, the drive
	// starts from; nil is a new one.
	From *Machine
	// Key is the state of the oracle: whatever decides which images check
	// accepts. Where it has not changed, an image that was checked is not
	// checked again, and an event that changed nothing is no crash point.
	// Without it images are deduplicated within one crash point only.
	Key func() uint64
	// MaxImages is the most images tried at one crash point of the drive; of
	// more, a sample is. 0 means 256.
	MaxImages int
	// NestedImages is the same for crash points within check. 0 means 8.
	NestedImages int
	// Depth is how many crashes deep check is crashed again. 0 means 1, and a
	// negative depth none.
	Depth int
	// Kills adds to every crash point the process crash that leaves the
	// media's uncertainty pending; see [Machine.Kill].
	Kills bool
	// Budget is the most checks made in total; 0 is no bound.
	Budget int
	// Every is the probability that an event of the drive is a crash point, for
	// long runs. 0 means 1.
	Every float64
	// Seed decides all samples.
	Seed uint64
	// Replay is the text of a Crash: only that one is checked.
	Replay string
}

func (o *Options) defaults() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.MaxImages, 256)
	set(&o.NestedImages, 8)
	set(&o.Depth, 1)
	if o.Every == 0 {
		o.Every = 1
	}
	if o.From != nil {
		o.Size = o.From.cfg.Size
	}
}

// Crash identifies one crash image. Its text is all that a replay needs,
// together with the same drive, check and Config.
type Crash struct {
	Event  Event  // the image is from just after it
	Choice string // of the image; see [Machine.Crash]
	Depth  int    // 0 for a crash of the drive, 1 for one of the check of such a crash, ...
	Outer  *Crash // the crash whose check was crashed; nil at depth 0
	Flavor Flavor
	Words  bool
	Seed   uint64
}

// String begins with the three fields that a replay reads.
func (c Crash) String() string {
	flavor := c.Flavor.String()
	if c.Words {
		flavor += "+words"
	}
	events := c.Event.String()
	for o := c.Outer; o != nil; o = o.Outer {
		events = o.Event.String() + "; then " + events
	}
	return fmt.Sprintf("%s seed=%d %s after %s", flavor, c.Seed, c.path(), events)
}

func (c Crash) path() string {
	s := fmt.Sprintf("%d{%s}", c.Event.N, c.Choice)
	if c.Outer != nil {
		s = c.Outer.path() + ">" + s
	}
	return s
}

type step struct {
	event  int
	choice string
}

// parseCrash reads what String writes.
func parseCrash(s string) (flavor string, seed uint64, path []step, err error) {
	f := strings.Fields(s)
	if len(f) < 3 {
		return "", 0, nil, fmt.Errorf("crashsim: %q is no crash: want flavour, seed and path", s)
	}
	seed, err = strconv.ParseUint(strings.TrimPrefix(f[1], "seed="), 10, 64)
	for part := range strings.SplitSeq(f[2], ">") {
		at, choice, _ := strings.Cut(strings.TrimSuffix(part, "}"), "{")
		n, e := strconv.Atoi(at)
		if e != nil {
			err = e
		}
		path = append(path, step{n, choice})
	}
	if err != nil {
		err = fmt.Errorf("crashsim: %q is no crash: %w", s, err)
	}
	return f[0], seed, path, err
}

// Report says what an exploration covered.
type Report struct {
	Events  int    // of the drive
	Points  int    // crash points, nested ones included
	Same    int    // events that were none, since nothing changed
	Skipped int    // events that sampling passed over
	Sampled int    // crash points with more images than their cap
	Images  int    // images enumerated
	Checked int    // distinct ones, on which check ran
	Nested  int    // of those, crashes within check
	Left    uint64 // images not tried because of caps; MaxUint64 is that or more
	MaxFan  uint64 // most images at one crash point
}

func (r Report) String() string {
	s := fmt.Sprintf("%d events, %d crash points (%d without change, %d passed over), %d images, %d checked (%d nested), fan-out up to %s",
		r.Events, r.Points, r.Same, r.Skipped, r.Images, r.Checked, r.Nested, many(r.MaxFan))
	if r.Left > 0 {
		s += fmt.Sprintf("; sampled at %d points, %s images left", r.Sampled, many(r.Left))
	}
	return s
}

func many(n uint64) string {
	if n >= 1e9 {
		return fmt.Sprintf("over %.0g", float64(n)/2)
	}
	return strconv.FormatUint(n, 10)
}

// Failure is an image that check rejected.
type Failure struct {
	Crash Crash
	Err   error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%v\ncrash: %v\nreplay with Options.Replay, or TIDEMARK_REPLAY in the environment, set to the crash", f.Err, f.Crash)
}

func (f *Failure) Unwrap() error { return f.Err }

// explorer is the state of one Explore.
type explorer struct {
	opt    Options
	check  func(*Machine, Crash) error
	seen   map[uint64]int // image and key: least depth at which it was checked
	rep    Report
	fail   *Failure
	replay []step
	ran    bool        // the replayed crash was reached
	exit   func(Crash) // called when check ends its goroutine
}

// exploration is the part of it that belongs to one machine.
type exploration struct {
	*explorer
	depth   int // 0 for the drive's machine
	crash   Crash
	visited bool
	version uint64 // at the last crash point
	key     uint64
}

// Explore runs drive on a machine. After every event it stops the world and
// calls check on a machine booted from each image that a crash could leave, once
// for each distinct one. The events check causes are crash points again, until
// it calls [Machine.Recovered]. A last crash point is the return of drive.
//
// Where several goroutines cause events these are explored all the same, but
// their numbers, and so a replay, depend on the schedule.
//
// check must decide by the image and the oracle alone. The machine it gets is
// recycled when it returns, so it must stop what it started there. The first
// image it rejects ends the exploration, not the drive; that error is a
// *[Failure]. An error of drive is returned as it is.
func Explore(opt Options, drive func(*Machine) error, check func(*Machine, Crash) error) (Report, error) {
	return explore(opt, drive, check, nil)
}

func explore(opt Options, drive func(*Machine) error, check func(*Machine, Crash) error, exit func(Crash)) (Report, error) {
	opt.defaults()
	x := &explorer{opt: opt, check: check, seen: map[uint64]int{}, exit: exit}
	if opt.Replay != "" {
		var err error
		if _, _, x.replay, err = parseCrash(opt.Replay); err != nil {
			return x.rep, err
		}
	}
	m := New(opt.Config)
	if opt.From != nil {
		m = opt.From.Clone()
		m.cfg, m.sites = opt.Config, newSites()
	}
	m.x = &exploration{explorer: x}
	err := drive(m)
	m.finish(err == nil)
	x.rep.Events = m.events
	switch {
	case x.fail != nil:
		return x.rep, x.fail
	case err != nil:
		return x.rep, err
	case x.replay != nil && !x.ran:
		return x.rep, fmt.Errorf("crashsim: the drive did not reach the crash %q", opt.Replay)
	}
	return x.rep, nil
}

// finish makes the return of a drive, if it succeeded, the last crash point.
func (m *Machine) finish(ok bool) {
	defer m.enter().Unlock()
	if ok {
		m.fire(Event{Kind: End})
	}
	m.x = nil
}

// event explores the crash just after e.
func (x *exploration) event(m *Machine, e Event) {
	if x.fail != nil || x.depth > max(x.opt.Depth, 0) {
		return
	}
	if x.replay != nil {
		x.replayAt(m, e)
		return
	}
	var key uint64
	if x.opt.Key != nil {
		key = x.opt.Key()
	}
	// Nested points share the oracle of the point that they are in.
	if x.opt.Key != nil || x.depth > 0 {
		if x.visited && x.version == m.version && x.key == key {
			x.rep.Same++
			return
		}
	} else {
		clear(x.seen)
	}
	rng := x.rng(e)
	if x.depth == 0 && e.Kind != End && x.opt.Every < 1 && rng.Float64() >= x.opt.Every {
		x.rep.Skipped++
		return
	}
	x.visited, x.version, x.key = true, m.version, key
	x.rep.Points++

	limit := x.opt.MaxImages
	if x.depth > 0 {
		limit = x.opt.NestedImages
	}
	version := m.version
	seq, left := m.images(limit, rng)
	tried := 0
	for g := range seq {
		tried++
		if x.tryOnce(m, e, g.hash(), key, g.choice, g.boot); x.fail != nil {
			return
		}
	}
	if x.opt.Kills && m.cfg.Flavor != Process {
		x.tryOnce(m, e, m.pendingHash(), key, func() string { return kill }, m.Kill)
	}
	if version != m.version {
		panic("crashsim: the machine moved on while it was stopped")
	}
	if left > 0 {
		x.rep.Sampled++
		x.rep.addLeft(left)
	}
	x.rep.MaxFan = max(x.rep.MaxFan, saturate(uint64(tried), left))
}

func saturate(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

func (r *Report) addLeft(n uint64) { r.Left = saturate(r.Left, n) }

// rng gives each crash point its own stream, so that one is what it is whatever
// was done at the others.
func (x *exploration) rng(e Event) *rand.Rand {
	at := mix(uint64(e.N))
	for c, d := &x.crash, x.depth; d > 0; c, d = c.Outer, d-1 {
		at = mix(at + uint64(c.Event.N))
		for _, b := range []byte(c.Choice) {
			at = mix(at + uint64(b))
		}
	}
	return rand.New(rand.NewPCG(x.opt.Seed, at))
}

// pendingHash names what Kill leaves.
func (m *Machine) pendingHash() uint64 {
	h := mix(m.sum + m.size.Load() + 1)
	for _, ln := range m.order {
		for i := range m.live[ln].ages {
			h = mix(h + m.live[ln].ages[i].h)
		}
	}
	for i := range m.pending {
		for _, p := range m.pending[i].parts {
			p.over(&p.c)
			for j := range p.c {
				p.c[j] &= p.mask[j]
			}
			h = mix(h + hashLine(p.ln, &p.c) + hashLine(p.ln, &p.mask))
		}
	}
	return h
}

// tryOnce checks an image unless that was done under the same oracle, with as
// many crashes to come.
func (x *exploration) tryOnce(m *Machine, e Event, hash, key uint64, choice func() string, boot func() *Machine) {
	x.rep.Images++
	id := mix(hash) + mix(mix(key+1))
	if depth, ok := x.seen[id]; ok && depth <= x.depth {
		return
	}
	if x.opt.Budget > 0 && x.rep.Checked >= x.opt.Budget {
		x.rep.addLeft(1)
		return
	}
	x.seen[id] = x.depth
	x.try(m, e, choice(), boot())
}

func (x *exploration) try(m *Machine, e Event, choice string, image *Machine) {
	x.rep.Checked++
	c := Crash{Event: e, Choice: choice, Depth: x.depth, Flavor: m.cfg.Flavor, Words: m.cfg.Words, Seed: x.opt.Seed}
	if x.depth > 0 {
		x.rep.Nested++
		outer := x.crash
		c.Outer = &outer
	}
	image.x = &exploration{explorer: x.explorer, depth: x.depth + 1, crash: c}
	err := x.call(image, c)
	image.Stopped(func() { image.x = nil })
	if err != nil && x.fail == nil {
		x.fail = &Failure{c, err}
	}
	if x.fail == nil {
		image.Release()
	}
}

// call runs check; a panic of it is an error.
func (x *exploration) call(m *Machine, c Crash) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		} else if x.exit != nil {
			x.exit(c)
		}
	}()
	err = x.check(m, c)
	returned = true
	return err
}

// replayAt is event for a replay: the one crash of the path is tried. Those
// around it are checked as well, to get there.
func (x *exploration) replayAt(m *Machine, e Event) {
	if x.depth >= len(x.replay) || x.replay[x.depth].event != e.N {
		return
	}
	// The path leads through this machine only if it leads to its crash, and
	// only that one was booted.
	choice := x.replay[x.depth].choice
	image, err := m.crash(choice)
	if err != nil {
		x.fail = &Failure{Crash{Event: e, Choice: choice, Depth: x.depth, Flavor: m.cfg.Flavor, Words: m.cfg.Words, Seed: x.opt.Seed}, err}
		return
	}
	x.rep.Points++
	x.rep.Images++
	x.ran = x.ran || x.depth == len(x.replay)-1
	x.try(m, e, choice, image)
}

// EveryCrash is Explore for tests: it fails t with the crash that check rejects,
// and logs the report. If the environment variable TIDEMARK_REPLAY holds a crash
// of the same flavour, that one is replayed.
func EveryCrash(t testing.TB, opt Options, drive func(*Machine) error, check func(*Machine, Crash) error) Report {
	t.Helper()
	if s := os.Getenv("TIDEMARK_REPLAY"); s != "" && opt.Replay == "" {
		flavor, seed, _, err := parseCrash(s)
		if err != nil {
			t.Fatal(err)
		}
		have := []string{opt.Flavor.String()}
		if opt.Words {
			have[0] += "+words"
		}
		if slices.Contains(have, flavor) {
			opt.Replay, opt.Seed = s, seed
		}
	}
	rep, err := explore(opt, drive, check, func(c Crash) {
		t.Helper()
		t.Logf("check ended the test; crash: %v", c)
	})
	t.Logf("%v%s: %v", opt.Flavor, map[bool]string{true: "+words"}[opt.Words], rep)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}
