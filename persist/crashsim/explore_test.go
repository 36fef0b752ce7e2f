package crashsim_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// pair is a toy: two slots of two lines, and a word that says which value is
// committed; value v is in slot v%2.
type pair struct {
	begun, acked uint64

	skipWriteBack, skipOrder, skipFence bool // deliberate bugs
}

const (
	commitOff persist.Off = 0x4000
	spareOff  persist.Off = 0x4040
)

func slotOff(v uint64, half int) persist.Off {
	return 0x5000 + persist.Off(v%2)*0x1000 + persist.Off(half)*64
}

func (p *pair) put(r *persist.Region, h *persist.Handle, v uint64) error {
	p.begun = v
	for half := range 2 {
		r.Set(slotOff(v, half), v)
		if !p.skipWriteBack {
			h.WriteBack(slotOff(v, half), 8) // need: data
		}
	}
	if !p.skipOrder {
		h.Order() // need: order
	}
	h.Store(commitOff, v)
	h.WriteBack(commitOff, 8) // need: commit
	h.WriteBack(spareOff, 8)  // need: spare
	if !p.skipFence {
		if err := h.Fence(); err != nil { // need: fence
			return err
		}
	}
	p.acked = v
	r.Point("acked")
	return nil
}

func (p *pair) drive(m *crashsim.Machine) error {
	p.begun, p.acked = 0, 0
	var r *persist.Region
	var err error
	m.Quiet(func() { r, err = persist.NewSimulated(m) })
	if err != nil {
		return err
	}
	h := r.Handle()
	for v := uint64(1); v <= 3; v++ {
		if err := p.put(r, &h, v); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) key() uint64 { return p.begun<<32 | p.acked }

func (p *pair) check(m *crashsim.Machine, _ crashsim.Crash) error {
	r, err := persist.NewSimulated(m)
	if err != nil {
		return err
	}
	v := r.Load(commitOff)
	if v < p.acked || v > p.begun {
		return fmt.Errorf("committed %d, want %d to %d", v, p.acked, p.begun)
	}
	for half := range 2 {
		if got := r.Load(slotOff(v, half)); v != 0 && got != v {
			return fmt.Errorf("half %d of %d is %d", half, v, got)
		}
	}
	return nil
}

var everyFlavor = []crashsim.Config{
	{Size: 512 << 10},
	{Size: 512 << 10, Words: true},
	{Size: 512 << 10, Flavor: crashsim.Redo},
	{Size: 512 << 10, Flavor: crashsim.Redo, Words: true},
	{Size: 512 << 10, Flavor: crashsim.Redo, CheckpointEvery: 2},
	{Size: 512 << 10, Flavor: crashsim.Process},
}

func TestCorrectToy(t *testing.T) {
	for _, cfg := range everyFlavor {
		p := &pair{}
		rep := crashsim.EveryCrash(t, crashsim.Options{Config: cfg, Key: p.key, Kills: true}, p.drive, p.check)
		if rep.Left != 0 || rep.Checked < 10 || rep.Points == 0 {
			t.Errorf("%v: %v", cfg, rep)
		}
		// The key saves work, and nothing else.
		q := &pair{}
		all := crashsim.EveryCrash(t, crashsim.Options{Config: cfg, Kills: true}, q.drive, q.check)
		if all.Checked <= rep.Checked {
			t.Errorf("%v: %d checked without a key, %d with", cfg, all.Checked, rep.Checked)
		}
	}
}

func TestBrokenToy(t *testing.T) {
	for _, cfg := range everyFlavor {
		for _, p := range []*pair{{skipWriteBack: true}, {skipOrder: true}, {skipFence: true}} {
			rep, err := crashsim.Explore(crashsim.Options{Config: cfg, Key: p.key, Seed: 42}, p.drive, p.check)
			// A fence orders the log as well, and nothing is lost with a process.
			sound := cfg.Flavor == crashsim.Process || cfg.Flavor == crashsim.Redo && p.skipOrder
			if sound {
				if err != nil {
					t.Errorf("%+v %+v: %v", cfg, p, err)
				}
				continue
			}
			var f *crashsim.Failure
			if !errors.As(err, &f) {
				t.Errorf("%+v %+v: not caught: %v, %v", cfg, p, err, rep)
				continue
			}
			for _, want := range []string{"seed=42", fmt.Sprintf(" %d{%s} ", f.Crash.Event.N, f.Crash.Choice), "Options.Replay"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			again, err2 := crashsim.Explore(crashsim.Options{Config: cfg, Seed: 42, Replay: f.Crash.String()}, p.drive, p.check)
			var g *crashsim.Failure
			if !errors.As(err2, &g) || g.Crash != f.Crash || g.Err.Error() != f.Err.Error() || again.Checked != 1 {
				t.Errorf("replay of %v: %v, %v", err, err2, again)
			}
		}
	}
}

func TestNeed(t *testing.T) {
	for _, tc := range []struct {
		cfg    crashsim.Config
		needed []string
	}{
		{crashsim.Config{}, []string{"write-back", "order", "write-back", "fence"}},
		// A redo log orders by itself and logs ordered stores.
		{crashsim.Config{Flavor: crashsim.Redo}, []string{"write-back", "fence"}},
		{crashsim.Config{Flavor: crashsim.Process}, nil},
	} {
		p := &pair{}
		results, err := crashsim.Need(crashsim.Options{Config: tc.cfg, Key: p.key}, p.drive, p.check)
		if err != nil {
			t.Fatal(err)
		}
		var needed []string
		for _, r := range results {
			if r.Caught {
				needed = append(needed, r.Kind.String())
			}
		}
		if !slices.Equal(needed, tc.needed) || len(results) != 5 {
			t.Errorf("%v: needed %q, want %q; %d sites of 5", tc.cfg.Flavor, needed, tc.needed, len(results))
			for _, r := range results {
				t.Log(r)
			}
		}
		if err := crashsim.Unneeded(results); err == nil || !strings.Contains(err.Error(), "explore_test.go") {
			t.Errorf("unneeded: %v", err)
		}
	}
	p := &pair{skipFence: true}
	if _, err := crashsim.Need(crashsim.Options{Key: p.key}, p.drive, p.check); err == nil {
		t.Error("need of a broken protocol succeeded")
	}
}

// The log is in the order of the calls, and a crash may cut a fence short.
func TestCrashInsideFence(t *testing.T) {
	for _, late := range []bool{false, true} {
		drive := func(m *crashsim.Machine) error {
			m.Quiet(func() { m.Grow(persist.UnitSize) })
			set(m, a, 1)
			if late {
				m.Store(1, c, 1)
			}
			m.WriteBack(1, a, 8)
			if !late {
				m.Store(1, c, 1)
			}
			return m.Fence(1)
		}
		check := func(m *crashsim.Machine, _ crashsim.Crash) error {
			if v := view(m, "ac"); v == "01" {
				return errors.New("c without a")
			}
			return nil
		}
		_, err := crashsim.Explore(crashsim.Options{Config: crashsim.Config{Flavor: crashsim.Redo}}, drive, check)
		var f *crashsim.Failure
		if errors.As(err, &f) != late || late && f.Crash.Event.Kind != crashsim.Sync {
			t.Errorf("late %v: %v", late, err)
		}
	}
}

// A recovery that withdraws its reason to run before its work is durable.
func TestNestedCrash(t *testing.T) {
	drive := func(m *crashsim.Machine) error {
		m.Quiet(func() { m.Grow(persist.UnitSize) })
		m.Store(1, a, 1) // work to do: copy 7 to c and d
		m.WriteBack(1, a, 8)
		return m.Fence(1)
	}
	recovery := func(m *crashsim.Machine, early bool) {
		if get(m, a) != 1 {
			return
		}
		done := func() {
			m.Store(1, a, 2)
			m.WriteBack(1, a, 8)
			m.Fence(1)
		}
		if early {
			done()
		}
		set(m, c, 7)
		set(m, d, 7)
		m.WriteBack(1, c, 8)
		m.WriteBack(1, d, 8)
		m.Fence(1)
		done()
	}
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo, crashsim.Process} {
		for _, early := range []bool{false, true} {
			for depth := -1; depth <= 3; depth++ {
				if depth == 0 {
					continue // means 1
				}
				opt := crashsim.Options{Config: crashsim.Config{Flavor: flavor}, Depth: depth, Key: func() uint64 { return 0 }}
				check := func(m *crashsim.Machine, _ crashsim.Crash) error {
					recovery(m, early)
					m.Recovered()
					set(m, c, 9) // no crash point any more
					set(m, c, 7)
					if v := view(m, "acd"); v != "277" && v != "077" {
						return errors.New("not recovered: " + v)
					}
					return nil
				}
				rep, err := crashsim.Explore(opt, func(m *crashsim.Machine) error { return drive(m) }, func(m *crashsim.Machine, cr crashsim.Crash) error {
					if get(m, a) == 0 {
						m.Recovered()
						return nil
					}
					return check(m, cr)
				})
				var f *crashsim.Failure
				switch {
				case early && depth > 0:
					if !errors.As(err, &f) || f.Crash.Depth == 0 || f.Crash.Outer == nil {
						t.Fatalf("%v: not caught: %v, %v", flavor, err, rep)
					}
					opt.Replay = f.Crash.String()
					_, err = crashsim.Explore(opt, drive, func(m *crashsim.Machine, cr crashsim.Crash) error {
						if get(m, a) == 0 {
							return nil
						}
						return check(m, cr)
					})
					var g *crashsim.Failure
					if !errors.As(err, &g) || g.Crash.String() != f.Crash.String() {
						t.Fatalf("replay of %v: %v", f, err)
					}
				case err != nil:
					t.Fatalf("%v early %v: %v", flavor, early, err)
				case (rep.Nested > 0) != (depth > 0):
					t.Errorf("%v depth %d: %v", flavor, depth, rep)
				}
			}
		}
	}
}

// A crash that keeps the page cache, then one that does not: recovery must not
// take what it reads for durable.
func TestKillThenPowerLoss(t *testing.T) {
	for _, repair := range []bool{false, true} {
		drive := func(m *crashsim.Machine) error {
			m.Quiet(func() { m.Grow(persist.UnitSize) })
			set(m, a, 1)
			return nil
		}
		// Recovery publishes what it found in a, in c.
		check := func(m *crashsim.Machine, _ crashsim.Crash) error {
			if get(m, c) == 1 && get(m, a) != 1 {
				return errors.New("c without a")
			}
			if get(m, a) == 1 {
				if repair {
					m.WriteBack(1, a, 8)
					m.Fence(1)
				}
				m.Store(1, c, 1)
				m.WriteBack(1, c, 8)
				m.Fence(1)
			}
			return nil
		}
		for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
			opt := crashsim.Options{Config: crashsim.Config{Flavor: flavor}}
			if _, err := crashsim.Explore(opt, drive, check); err != nil {
				t.Errorf("%v: power losses alone: %v", flavor, err)
			}
			opt.Kills = true
			if _, err := crashsim.Explore(opt, drive, check); (err == nil) != repair {
				t.Errorf("%v repair %v: %v", flavor, repair, err)
			}
		}
	}
}

func TestCaps(t *testing.T) {
	drive := func(m *crashsim.Machine) error {
		m.Quiet(func() { m.Grow(persist.UnitSize) })
		for i := range persist.Off(80) {
			set(m, i*64, 1)
		}
		return nil
	}
	n := 0
	check := func(*crashsim.Machine, crashsim.Crash) error { n++; return nil }
	rep, err := crashsim.Explore(crashsim.Options{MaxImages: 20, Key: func() uint64 { return 0 }}, drive, check)
	if err != nil || rep.Checked != n || rep.Sampled == 0 || rep.Left != 1<<64-1 {
		t.Errorf("%v, %v, %d checks", rep, err, n)
	}
	rep, err = crashsim.Explore(crashsim.Options{Budget: 50}, drive, check)
	if err != nil || rep.Checked != 50 || rep.Left == 0 {
		t.Errorf("budget 50: %v, %v", rep, err)
	}
	rep, err = crashsim.Explore(crashsim.Options{Every: 0.1, Seed: 3}, drive, check)
	if err != nil || rep.Points == 0 || rep.Points > 30 || rep.Skipped < 50 {
		t.Errorf("every tenth: %v, %v", rep, err)
	}
}

func TestPanicAndErrors(t *testing.T) {
	drive := func(m *crashsim.Machine) error { return m.Grow(persist.UnitSize) }
	_, err := crashsim.Explore(crashsim.Options{}, drive, func(*crashsim.Machine, crashsim.Crash) error { panic("ouch") })
	var f *crashsim.Failure
	if !errors.As(err, &f) || !strings.Contains(err.Error(), "panic: ouch") || !strings.Contains(err.Error(), "explore_test.go") {
		t.Errorf("panic of check: %v", err)
	}
	fine := func(*crashsim.Machine, crashsim.Crash) error { return nil }
	broken := errors.New("broken")
	if _, err := crashsim.Explore(crashsim.Options{}, func(*crashsim.Machine) error { return broken }, fine); err != broken {
		t.Errorf("error of drive: %v", err)
	}
	for _, s := range []string{"nonsense", "lines seed=x 1{old}", "lines seed=1 x{old}", "lines seed=1 999{old}", "lines seed=1 1{old,40:1}"} {
		if _, err := crashsim.Explore(crashsim.Options{Replay: s}, drive, fine); err == nil {
			t.Errorf("replay of %q succeeded", s)
		}
	}
}

func TestReplayFromEnvironment(t *testing.T) {
	p := &pair{}
	t.Setenv("TIDEMARK_REPLAY", "redo+words seed=5 16{old} after whatever")
	for _, cfg := range everyFlavor {
		rep := crashsim.EveryCrash(t, crashsim.Options{Config: cfg, Key: p.key}, p.drive, p.check)
		if want := cfg.Flavor == crashsim.Redo && cfg.Words; (rep.Checked == 1) != want {
			t.Errorf("%+v: %v", cfg, rep)
		}
	}
}

// A check that ends its goroutine, as t.FailNow does, leaves nothing locked.
func TestCheckExits(t *testing.T) {
	var m *crashsim.Machine
	done := make(chan struct{})
	go func() {
		defer close(done)
		crashsim.Explore(crashsim.Options{}, func(n *crashsim.Machine) error { m = n; return n.Grow(persist.UnitSize) },
			func(*crashsim.Machine, crashsim.Crash) error { runtime.Goexit(); return nil })
		t.Error("came back")
	}()
	<-done
	m.Stopped(func() {})
}

// The machine of a check that forgot a goroutine says so.
func TestUseAfterCheck(t *testing.T) {
	var late *crashsim.Machine
	_, err := crashsim.Explore(crashsim.Options{}, func(m *crashsim.Machine) error { return m.Grow(persist.UnitSize) },
		func(m *crashsim.Machine, _ crashsim.Crash) error { late = m; return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("used after its check")
		}
	}()
	late.Point("late")
}

// The machine of a drive stays usable, and a clone of it can be explored.
func TestFrom(t *testing.T) {
	p := &pair{}
	var base *crashsim.Machine
	if _, err := crashsim.Explore(crashsim.Options{}, func(m *crashsim.Machine) error { base = m; return p.drive(m) }, p.check); err != nil {
		t.Fatal(err)
	}
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
		p.begun, p.acked = 3, 3
		crashsim.EveryCrash(t, crashsim.Options{From: base, Config: crashsim.Config{Flavor: flavor}}, func(m *crashsim.Machine) error {
			r, err := persist.NewSimulated(m)
			if err != nil {
				return err
			}
			h := r.Handle()
			return p.put(r, &h, 4)
		}, p.check)
	}
}

func BenchmarkImages(b *testing.B) {
	m := crashsim.New(crashsim.Config{Size: 1 << 20})
	m.Grow(512 << 10)
	for i := range persist.Off(1000) {
		set(m, 0x1000+i*256, 1)
	}
	for i := range persist.Off(1000) {
		m.WriteBack(1, 0x1000+i*256, 8)
	}
	m.Fence(1)
	set(m, 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		m.Crash("old").Release()
	}
}

// A long history that nothing makes durable.
func BenchmarkExplore(b *testing.B) {
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
		b.Run(flavor.String(), func(b *testing.B) {
			checked := 0
			for b.Loop() {
				rep, err := crashsim.Explore(crashsim.Options{Config: crashsim.Config{Flavor: flavor}, MaxImages: 8}, func(m *crashsim.Machine) error {
					m.Grow(512 << 10)
					for i := range persist.Off(1000) {
						set(m, i*256, 1)
						m.WriteBack(1, i*256, 8)
						m.Order(1 + int(i%2))
					}
					return m.Fence(1)
				}, func(*crashsim.Machine, crashsim.Crash) error { return nil })
				if err != nil {
					b.Fatal(err)
				}
				checked += rep.Checked
			}
			b.ReportMetric(float64(checked)/b.Elapsed().Seconds(), "images/s")
		})
	}
}
