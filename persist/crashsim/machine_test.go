package crashsim_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// Words of the programs below: a and b share a line, c and d have their own.
const (
	a persist.Off = 0x100
	b persist.Off = 0x108
	c persist.Off = 0x140
	d persist.Off = 0x400
)

var names = map[string]persist.Off{"a": a, "b": b, "c": c, "d": d}

func newMachine(t *testing.T, cfg crashsim.Config) *crashsim.Machine {
	t.Helper()
	m := crashsim.New(cfg)
	if err := m.Grow(persist.UnitSize); err != nil {
		t.Fatal(err)
	}
	return m
}

func get(m *crashsim.Machine, off persist.Off) uint64 {
	return binary.LittleEndian.Uint64(m.Memory()[off:])
}

func set(m *crashsim.Machine, off persist.Off, v uint64) {
	binary.LittleEndian.PutUint64(m.Memory()[off:], v)
	m.Wrote(off, 8)
}

// run executes a program of steps: "a=1" stores plainly, "a:1" is an ordered
// store of handle 1, "wb a" a write-back, and "order", "fence", "kill",
// "checkpoint" are what they say. "2" after a step is the handle, if not 1.
func run(t *testing.T, m *crashsim.Machine, program string) *crashsim.Machine {
	t.Helper()
	for step := range strings.SplitSeq(program, ";") {
		f := strings.Fields(step)
		handle := 1
		if n := len(f); n > 1 && f[n-1] == "2" {
			handle, f = 2, f[:n-1]
		}
		if len(f) == 0 {
			continue
		}
		switch {
		case f[0] == "wb":
			m.WriteBack(handle, names[f[1]], 8)
		case f[0] == "order":
			m.Order(handle)
		case f[0] == "fence":
			if err := m.Fence(handle); err != nil {
				t.Fatal(err)
			}
		case f[0] == "kill":
			m = m.Kill()
		case f[0] == "checkpoint":
			m.Checkpoint()
		case f[0][1] == '=':
			set(m, names[f[0][:1]], uint64(f[0][2]-'0'))
		case f[0][1] == ':':
			m.Store(handle, names[f[0][:1]], uint64(f[0][2]-'0'))
		default:
			t.Fatalf("step %q", step)
		}
	}
	return m
}

func view(m *crashsim.Machine, words string) string {
	s := ""
	for i := range words {
		s += fmt.Sprint(get(m, names[words[i:i+1]]))
	}
	return s
}

func reachable(m *crashsim.Machine, words string) string {
	var all []string
	for _, im := range m.Images(1000, nil) {
		all = append(all, view(im, words))
		im.Release()
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestReachable(t *testing.T) {
	lines := crashsim.Config{}
	words := crashsim.Config{Words: true}
	redo := crashsim.Config{Flavor: crashsim.Redo}
	redoWords := crashsim.Config{Flavor: crashsim.Redo, Words: true}
	process := crashsim.Config{Flavor: crashsim.Process}
	for _, tc := range []struct {
		name    string
		cfg     crashsim.Config
		program string
		words   string
		want    string
	}{
		{"nothing written back", lines, "a=1; c=1", "ac", "00 01 10 11"},
		{"write-back alone promises nothing", lines, "a=1; wb a", "a", "0 1"},
		{"order before a store", lines, "a=1; wb a; order; c:1", "ac", "10 11"},
		{"no order before a store", lines, "a=1; wb a; c:1", "ac", "00 01 10 11"},
		{"order covers its handle only", lines, "a=1; wb a; order 2; c:1 2", "ac", "00 01 10 11"},
		{"two handles write back one line", lines, "a=1; wb a; a=2; wb a 2; order 2; order; c=1", "ac", "20 21"},
		{"the older mark comes later", lines, "a=1; wb a; a=2; wb a 2; order; c=1", "ac", "10 11 20 21"},
		{"a mark of a line begun again", lines, "a=1; wb a; wb a 2; order 2; a=2; order", "a", "1 2"},
		{"store after the write-back", lines, "a=1; wb a; a=2; order", "a", "1 2"},
		{"plain store after order", lines, "a=1; wb a; order; c=1", "ac", "10 11"},
		{"fence", lines, "a=1; c=1; wb a; wb c; fence", "ac", "11"},
		{"prefix within a line", lines, "a=1; b=1", "ab", "00 10 11"},
		{"words of a line on their own", words, "a=1; b=1", "ab", "00 01 10 11"},
		{"a word keeps its own order", words, "a=1; wb a; order; a=2; b=1; a=3", "ab", "10 11 20 21 30 31"},
		{"write-back takes the whole line", lines, "a=1; b=1; wb a; fence", "ab", "11"},
		{"there and back", lines, "a=1; a=0", "a", "0 1"},

		{"redo: early page, no log", redo, "a=1; wb a", "a", "0 1"},
		{"redo: a store is deferred", redo, "a=1; c:1", "ac", "00 10"},
		{"redo: log keeps the order", redo, "a=1; wb a; order; c:1; order", "ac", "00 10 11"},
		{"redo: a store shows through its write-back", redo, "c:1; wb c; fence", "c", "1"},
		{"redo: also one ordered before", redo, "c:1; order; wb c 2; order 2; fence", "c", "1"},
		{"redo: a write-back before the store", redo, "wb c; c:1; fence", "c", "1"},
		{"redo: one order is enough", redo, "a=1; wb a; c:1; order", "ac", "00 10 11"},
		{"redo: store logged before", redo, "a=1; c:1; wb a; order", "ac", "00 01 10 11"},
		{"redo: not written back", redo, "a=1; c:1; order", "ac", "00 01 10 11"},
		{"redo: plain store may overtake the order", redo, "a=1; wb a; order; c=1", "ac", "00 01 10 11"},
		{"redo: fence", redo, "a=1; wb a; c:1; fence", "ac", "11"},
		{"redo: fence is a group commit", redo, "a=1; wb a; order; c:1 2; fence 2", "ac", "11"},
		{"redo: notes are not in the log", redo, "a=1; wb a; c:1 2; fence 2", "ac", "01 11"},
		{"redo: replay hides later plain stores", redo, "a=1; wb a; fence; a=2", "a", "1"},
		{"redo: but not those beside it", redo, "a=1; wb a; fence; b=1; a=2", "ab", "10 11"},
		{"redo: bytes are captured by the order", redo, "a=1; wb a; a=2; order; a=3; fence", "a", "2"},
		{"redo: line prefixes are ages too", redo, "a=1; b=1", "ab", "00 10 11"},
		{"redo: age of a line below the log", redo, "a=1; b=1; wb b; fence", "ab", "01 11"},
		{"redo: words", redoWords, "a=1; b=1", "ab", "00 01 10 11"},
		{"redo: words under the log", redoWords, "a=1; b=1; wb a; order; c:1; order", "abc", "000 010 100 101 110 111"},
		{"redo: checkpoint", redo, "a=1; wb a; fence; a=2; checkpoint", "a", "2"},
		{"redo: after it the log hides nothing", redo, "a=1; wb a; fence; a=2; checkpoint; a=3", "a", "2 3"},
		{"redo: deferred store is an age", redo, "c:1; fence; c:2; fence", "c", "2"},

		{"process", process, "a=1; c:2; a=3", "ac", "32"},

		{"kill keeps it pending", lines, "a=1; wb a; kill", "a", "0 1"},
		{"kill forgets write-backs", lines, "a=1; wb a; kill; order; c:1", "ac", "00 01 10 11"},
		{"written back again after a kill", lines, "a=1; kill; wb a; order; c:1", "ac", "10 11"},
		{"redo: kill finds the log", redo, "a=1; wb a; order; c:1; d=1; kill", "acd", "100 101"},
		{"redo: kill replays over newer stores", redo, "a=1; wb a; fence; a=2; kill; d=1", "ad", "10 11"},
		{"redo: logged stores survive a kill", redo, "c:1; order; kill", "c", "1"},
		{"process: kill", process, "a=1; kill", "a", "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := run(t, newMachine(t, tc.cfg), tc.program)
			if got := reachable(m, tc.words); got != tc.want {
				t.Errorf("%v %q: images of %s: %s, want %s", tc.cfg.Flavor, tc.program, tc.words, got, tc.want)
			}
			if u := m.Unannounced(); len(u) != 0 {
				t.Errorf("unannounced: %v", u)
			}
		})
	}
}

func TestVolatileView(t *testing.T) {
	m := newMachine(t, crashsim.Config{Flavor: crashsim.Redo})
	run(t, m, "c:1; a=1; order")
	if got := view(m, "ac"); got != "10" {
		t.Errorf("before the fence: %s, want 10", got)
	}
	run(t, m, "fence 2")
	if got := view(m, "ac"); got != "11" {
		t.Errorf("after another handle's fence: %s, want 11", got)
	}
	run(t, m, "a=1; wb a; fence; a=2")
	if got := view(m.Kill(), "a"); got != "1" {
		t.Errorf("killed: %s, want the replayed 1", got)
	}
	l := run(t, newMachine(t, crashsim.Config{}), "c:1")
	if got := view(l, "c"); got != "1" {
		t.Errorf("lines: %s, want 1", got)
	}
}

func TestChoiceReproducesImage(t *testing.T) {
	for _, cfg := range []crashsim.Config{
		{}, {Words: true}, {Flavor: crashsim.Redo}, {Flavor: crashsim.Redo, Words: true}, {Flavor: crashsim.Process},
	} {
		m := run(t, newMachine(t, cfg), "a=1; b=2; wb a; order; c:3; a=4; b=5; wb c; order; d=6; d=7; wb d; order; a=8")
		n := 0
		for choice, im := range m.Images(1000, nil) {
			again := m.Crash(choice)
			if got, want := string(again.Memory()), string(im.Memory()); got != want {
				t.Errorf("%+v %q: %s, want %s", cfg, choice, view(again, "abcd"), view(im, "abcd"))
			}
			n++
		}
		if n == 0 {
			t.Errorf("%+v: no images", cfg)
		}
		for _, bad := range []string{"", "young", "old,", "old,100", "old,zz:1", "old,100:99", "old,ff00:1", "log=99,old", "log=-1,old", "log=0"} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("choice %q was taken", bad)
					}
				}()
				m.Crash(bad)
			}()
		}
	}
}

func TestSampledImages(t *testing.T) {
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
		m := newMachine(t, crashsim.Config{Flavor: flavor})
		for i := range persist.Off(100) {
			set(m, i*64, 1)
		}
		list := func() (all []string) {
			for choice, im := range m.Images(300, rand.New(rand.NewPCG(7, 7))) {
				all = append(all, choice)
				im.Release()
			}
			return all
		}
		all := list()
		if len(all) < 250 || all[0] != "old" || all[1] != "new" || !slices.Contains(all, "old,40:1") || !slices.Contains(all, "new,40:0") {
			t.Errorf("%v: %d images: %.200q", flavor, len(all), all)
		}
		if !slices.Equal(all, list()) {
			t.Errorf("%v: not the same with the same seed", flavor)
		}
	}
}

func TestRanges(t *testing.T) {
	m := newMachine(t, crashsim.Config{})
	// Over a line's edge, not aligned: two lines, and only the named bytes.
	copy(m.Memory()[0x13d:], "0123456789")
	m.Wrote(0x13d, 5)
	if u := m.Unannounced(); !slices.Equal(u, []persist.Off{0x140}) {
		t.Errorf("unannounced %v, want [0x140]", u)
	}
	m.WriteBack(1, 0x142, 5)
	if u := m.Unannounced(); len(u) != 0 {
		t.Errorf("unannounced %v after a write-back of the rest", u)
	}
	got := map[string]bool{}
	for _, im := range m.Images(100, nil) {
		got[strings.ReplaceAll(string(im.Memory()[0x13d:0x147]), "\x00", ".")] = true
	}
	for _, want := range []string{"..........", "012.......", "...34.....", "01234.....", "...3456789", "0123456789"} {
		if !got[want] {
			t.Errorf("no image %q in %v", want, got)
		}
	}
	if len(got) != 6 {
		t.Errorf("%d images, want 6: %v", len(got), got)
	}
	m.Wrote(0, 0)
	m.WriteBack(1, persist.UnitSize, 0)

	redo := newMachine(t, crashsim.Config{Flavor: crashsim.Redo})
	copy(redo.Memory()[0x13d:], "0123456789")
	redo.WriteBack(1, 0x13e, 8) // ranges are logged as given
	redo.Fence(1)
	redo.Wrote(0x13d, 10)
	got = map[string]bool{}
	for _, im := range redo.Images(100, nil) {
		got[strings.ReplaceAll(string(im.Memory()[0x13d:0x147]), "\x00", ".")] = true
	}
	for _, want := range []string{".12345678.", "012345678.", ".123456789", "0123456789"} {
		if !got[want] || len(got) != 4 {
			t.Errorf("redo: want %q and three more in %v", want, got)
		}
	}

	for _, f := range []func(){
		func() { m.Wrote(persist.UnitSize-4, 8) },
		func() { m.Wrote(8, -1) },
		func() { m.WriteBack(1, persist.UnitSize, 1) },
		func() { m.Store(1, 4, 1) },
		func() { m.Store(1, persist.UnitSize, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a range outside was taken")
				}
			}()
			f()
		}()
	}
}

func TestGrow(t *testing.T) {
	m := newMachine(t, crashsim.Config{Size: 3*persist.UnitSize - 1})
	if got := len(m.Memory()); got != 3*persist.UnitSize {
		t.Fatalf("%d bytes of memory", got)
	}
	if err := m.Grow(2 * persist.UnitSize); err != nil {
		t.Fatal(err)
	}
	if err := m.Grow(4 * persist.UnitSize); !errors.Is(err, persist.ErrNoSpace) {
		t.Errorf("growing too far: %v", err)
	}
	if err := m.Grow(persist.UnitSize); err != nil || m.Size() != 2*persist.UnitSize {
		t.Errorf("shrunk: %v, %d", err, m.Size())
	}
	for _, n := range []*crashsim.Machine{m.Crash("old"), m.Kill(), m.Clone()} {
		if n.Size() != 2*persist.UnitSize {
			t.Errorf("size after a crash: %d", n.Size())
		}
	}
}

func TestRecycledMemoryIsZero(t *testing.T) {
	for range 50 {
		m := newMachine(t, crashsim.Config{Size: 5 * persist.UnitSize})
		for i, v := range m.Memory() {
			if v != 0 {
				t.Fatalf("byte %#x is %d", i, v)
			}
		}
		if u := m.Unannounced(); len(u) != 0 {
			t.Fatalf("unannounced %v", u)
		}
		run(t, m, "a=1; c=2")
		m.Memory()[0x7777] = 3 // not announced
		im := m.Crash("new")
		if im.Memory()[0x7777] != 0 || view(im, "ac") != "12" {
			t.Fatal("wrong image")
		}
		im.Release()
		m.Release()
	}
}

func TestEventsAndCounts(t *testing.T) {
	m := newMachine(t, crashsim.Config{Sites: true})
	var got []string
	m.OnEvent(func(e crashsim.Event) { got = append(got, fmt.Sprint(e.N, " ", e.Kind)) })
	run(t, m, "a=1; wb a; order; c:1; fence")
	m.Point("here")
	want := []string{"2 wrote", "3 write-back", "4 order", "5 store", "6 fence", "7 point"}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if n := m.Counts(); n[crashsim.Fence] != 1 || n[crashsim.Grow] != 1 || m.Events() != 7 {
		t.Errorf("counts %v", n)
	}
	sites := m.SiteCounts()
	if len(sites) != 3 {
		t.Errorf("sites %v", sites)
	}
	for s := range sites {
		if !strings.HasPrefix(s.At, "persist/crashsim_test/machine_test.go:") {
			t.Errorf("site %v", s)
		}
	}
}

// The site is the caller of persist, wherever in it the event is issued.
func TestSiteOutsidePersist(t *testing.T) {
	m := crashsim.New(crashsim.Config{Sites: true})
	r, err := persist.NewSimulated(m)
	if err != nil {
		t.Fatal(err)
	}
	h := r.Handle()
	r.SetBootID(&h)
	h.Fence()
	for s := range m.SiteCounts() {
		if !strings.HasPrefix(s.At, "persist/crashsim_test/machine_test.go:") {
			t.Errorf("site %v", s)
		}
	}
}

func TestDrop(t *testing.T) {
	drop := func(kind crashsim.Kind, nth int) func(crashsim.Kind, string, int) bool {
		return func(k crashsim.Kind, _ string, n int) bool { return k == kind && n == nth }
	}
	program := "a=1; wb a; order; c:1; wb c; fence"
	for _, tc := range []struct {
		flavor crashsim.Flavor
		kind   crashsim.Kind
		nth    int
		want   string
	}{
		{crashsim.Lines, crashsim.WriteBack, 99, "11"},
		{crashsim.Lines, crashsim.WriteBack, 0, "01 11"},
		{crashsim.Lines, crashsim.Fence, 0, "10 11"},
		{crashsim.Redo, crashsim.WriteBack, 0, "01 11"},
		{crashsim.Redo, crashsim.Order, 0, "11"},
		{crashsim.Redo, crashsim.Fence, 0, "00 01 10 11"},
	} {
		m := newMachine(t, crashsim.Config{Flavor: tc.flavor, Drop: drop(tc.kind, tc.nth)})
		// Each step has the same site, since run issues it; n tells them apart.
		if got := reachable(run(t, m, program), "ac"); got != tc.want {
			t.Errorf("%v without %v %d: %s, want %s", tc.flavor, tc.kind, tc.nth, got, tc.want)
		}
		if got := view(m, "ac"); got != "11" {
			t.Errorf("%v without %v: memory is %s", tc.flavor, tc.kind, got)
		}
	}
}

func TestFenceError(t *testing.T) {
	broken := errors.New("broken")
	m := newMachine(t, crashsim.Config{Flavor: crashsim.Redo, FenceError: func(n int) error {
		if n == 1 {
			return broken
		}
		return nil
	}})
	run(t, m, "a=1; wb a; fence; c:1; wb a")
	if err := m.Fence(1); err != broken {
		t.Errorf("fence: %v", err)
	}
	if got := view(m, "c"); got != "0" {
		t.Errorf("the store was executed: %s", got)
	}
}

func TestCheckpointEvery(t *testing.T) {
	m := newMachine(t, crashsim.Config{Flavor: crashsim.Redo, CheckpointEvery: 2})
	run(t, m, "a=1; wb a; fence; a=2; fence; a=3")
	if got := reachable(m, "a"); got != "2 3" {
		t.Errorf("images %s, want 2 3", got)
	}
}

func TestStrict(t *testing.T) {
	m := newMachine(t, crashsim.Config{Strict: true})
	run(t, m, "a=1; wb a; order; c:1; fence")
	m.Memory()[d] = 1
	m.Point("not looked at")
	defer func() {
		if p := fmt.Sprint(recover()); !strings.Contains(p, "0x400") {
			t.Errorf("panic %q", p)
		}
	}()
	m.Order(1)
}

// Events of many goroutines, with the memory shared by word.
func TestManyGoroutines(t *testing.T) {
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo, crashsim.Process} {
		m := crashsim.New(crashsim.Config{Flavor: flavor})
		r, err := persist.NewSimulated(m)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				h := r.Handle()
				for i := range 50 {
					off := persist.Off(0x4000 + 64*i + 8*g)
					r.Set(off, uint64(i+1))
					h.WriteBack(off, 8)
					h.Order()
					h.Store(off+32, uint64(i+1))
					if err := h.Fence(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		stop := make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					m.Stopped(func() { m.Crash("old").Release() })
				}
			}
		})
		for range 10 {
			m.Stopped(func() { m.Kill().Release() })
		}
		close(stop)
		wg.Wait()
		if u := m.Unannounced(); len(u) != 0 {
			t.Errorf("unannounced %v", u)
		}
		// An ordered store needs no write-back where it is logged.
		if flavor != crashsim.Lines {
			n := 0
			for range m.Images(10, nil) {
				n++
			}
			if n != 1 {
				t.Errorf("%v: %d images after the last fence", flavor, n)
			}
		}
	}
}
