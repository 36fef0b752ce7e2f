package crashsim

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidemark-db/tidemark/persist"
)

// Flavor is the kind of media under a Machine.
type Flavor uint8

const (
	// Lines is persistent memory: cache lines, write-back instructions, stores
	// that execute at once.
	Lines Flavor = iota
	// Redo is an ordinary disk: a page cache that writes lines out whenever it
	// likes, and a log, synced by Fence, that recovery replays over them.
	Redo
	// Process is memory that outlives the process: a crash keeps everything.
	Process
)

var flavorNames = [...]string{"lines", "redo", "process"}

func (f Flavor) String() string {
	if int(f) < len(flavorNames) {
		return flavorNames[f]
	}
	return fmt.Sprintf("Flavor(%d)", uint8(f))
}

// Kind is what an Event is.
type Kind uint8

const (
	Wrote     Kind = iota + 1 // plain stores were announced
	WriteBack                 // a range was written back
	Order                     // a handle ordered what it wrote back
	Store                     // an ordered store
	Fence                     // a fence returns
	Point                     // a named point was passed
	Grow                      // the backed size grew
	Sync                      // Redo: a fence put something into the log and is about to sync it
	End                       // the drive of an exploration returned
)

var kindNames = [...]string{"?", "wrote", "write-back", "order", "store", "fence", "point", "grow", "sync", "end"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Config describes a Machine. Only Size is needed.
type Config struct {
	// Size is the most the region may grow to; it is rounded up to whole units.
	// 0 means 1 MiB.
	Size   uint64
	Flavor Flavor
	// Words selects the stricter adversary: each aligned 8-byte word reaches
	// media on its own instead of with its line.
	Words bool
	// CheckpointEvery makes a Redo machine write its memory out and empty its
	// log after every so many fences; 0 means never.
	CheckpointEvery int
	// Strict panics at an order, an ordered store or a fence if there are plain
	// stores not announced by then, whose states the images before it lack. It
	// looks at the whole memory each time, and is for runs of one goroutine.
	Strict bool
	// Sites records the call site of every write-back, order and fence. It
	// makes these events slow.
	Sites bool
	// Drop decides whether the n-th event (from 0) of its kind at a site is
	// dropped: a dropped write-back or order does nothing, a dropped fence
	// returns as if all were durable. Setting it implies Sites.
	Drop func(kind Kind, site string, n int) bool
	// FenceError, if it returns an error for the n-th fence (from 0), makes the
	// fence fail with it: no deferred store executes, and nothing more is known
	// durable than before, though it may be.
	FenceError func(n int) error
}

// Event is one numbered step of a Machine: a place to crash at, just after it.
type Event struct {
	N       int // from 1, per machine
	Kind    Kind
	Name    string // of a Point
	Off     persist.Off
	Len     int
	Handle  int
	Site    string // where the code is that caused it, if sites are recorded
	Dropped bool
}

func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "event %d: %v", e.N, e.Kind)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	if e.Handle != 0 {
		fmt.Fprintf(&b, " handle %d", e.Handle)
	}
	if e.Len != 0 {
		fmt.Fprintf(&b, " [%#x, +%d)", uint64(e.Off), e.Len)
	}
	if e.Site != "" {
		fmt.Fprintf(&b, " in %s", e.Site)
	}
	if e.Dropped {
		b.WriteString(" (dropped)")
	}
	return b.String()
}

// Site is a place in the code that writes back, orders or fences.
type Site struct {
	Kind Kind
	At   string // package-relative, such as "alloc/superblock.go:123"
}

func (s Site) String() string { return s.Kind.String() + " " + s.At }

// A Machine is simulated memory with its media: a [persist.Machine].
//
// Events may come from any goroutine; they are serialised, and hooks run while
// all others wait. Every other method must be called from a hook, inside
// [Machine.Stopped], or while nothing runs on the machine.
type Machine struct {
	cfg  Config
	buf  *buffer // memory and known content
	size atomic.Uint64
	gate sync.Mutex // held for the length of an event, hooks included

	sum     uint64 // hash of the known content
	version uint64 // changes whenever the set of reachable images may have

	live    map[uint32]*line // lines whose image is not simply the known content
	order   []uint32         // keys of live, ascending
	handles map[int]*handle
	pending []record // Redo: the log behind its durable part
	fences  int

	events int
	counts map[Kind]int
	sites  *siteTable // shared with the machines booted from this one
	hooks  []func(Event)
	quiet  int
	dead   bool

	x *exploration // nil unless this machine is being explored
}

// New returns a machine with nothing on it.
func New(cfg Config) *Machine {
	if cfg.Size == 0 {
		cfg.Size = 1 << 20
	}
	cfg.Size = (cfg.Size + persist.UnitSize - 1) / persist.UnitSize * persist.UnitSize
	return newMachine(cfg, newSites())
}

func newMachine(cfg Config, sites *siteTable) *Machine {
	return &Machine{
		cfg:     cfg,
		buf:     getBuffer(int(cfg.Size)),
		live:    map[uint32]*line{},
		handles: map[int]*handle{},
		counts:  map[Kind]int{},
		sites:   sites,
	}
}

// Config returns what the machine was made with.
func (m *Machine) Config() Config { return m.cfg }

// Memory returns the volatile view. Bytes beyond Size must not be touched.
func (m *Machine) Memory() []byte { return m.buf.bytes }

// Size returns the backed size. It survives every crash.
func (m *Machine) Size() uint64 { return m.size.Load() }

// Grow sets the backed size.
func (m *Machine) Grow(size uint64) error {
	defer m.enter().Unlock()
	if size > m.cfg.Size {
		return fmt.Errorf("crashsim: %w: grow to %d bytes of at most %d", persist.ErrNoSpace, size, m.cfg.Size)
	}
	if size > m.size.Load() {
		m.size.Store(size)
		m.version++
		m.fire(Event{Kind: Grow, Len: int(size)})
	}
	return nil
}

// Wrote announces plain stores to [off, off+n).
func (m *Machine) Wrote(off persist.Off, n int) {
	defer m.enter().Unlock()
	m.check(off, n)
	m.absorb(off, n)
	m.fire(Event{Kind: Wrote, Off: off, Len: n})
}

// WriteBack starts moving [off, off+n) to media for a handle.
func (m *Machine) WriteBack(id int, off persist.Off, n int) {
	defer m.enter().Unlock()
	m.check(off, n)
	e := m.sited(Event{Kind: WriteBack, Handle: id, Off: off, Len: n})
	m.absorb(off, n)
	if !e.Dropped {
		switch m.cfg.Flavor {
		case Lines:
			m.linesWriteBack(m.handle(id), off, n)
		case Redo:
			h := m.handle(id)
			h.notes = append(h.notes, note{off: off, n: n})
		}
	}
	m.fire(e)
}

// Order orders what the handle wrote back before what is stored after it.
func (m *Machine) Order(id int) {
	defer m.enter().Unlock()
	e := m.sited(Event{Kind: Order, Handle: id})
	if !e.Dropped {
		m.orderHandle(m.handle(id))
	}
	m.fire(e)
}

func (m *Machine) orderHandle(h *handle) {
	switch m.cfg.Flavor {
	case Lines:
		m.linesOrder(h)
	case Redo:
		m.redoOrder(h)
	}
}

// Store makes an ordered store of one word; a Redo machine defers it.
func (m *Machine) Store(id int, off persist.Off, v uint64) {
	defer m.enter().Unlock()
	m.check(off, 8)
	if off%8 != 0 {
		panic(fmt.Sprintf("crashsim: store to %#x, which is no word", uint64(off)))
	}
	if m.cfg.Flavor == Redo {
		h := m.handle(id)
		h.notes = append(h.notes, note{store: true, off: off, v: v})
	} else {
		m.execute(off, v)
	}
	m.fire(Event{Kind: Store, Handle: id, Off: off, Len: 8})
}

// execute stores a word in memory, plain stores beside it left alone.
func (m *Machine) execute(off persist.Off, v uint64) {
	m.absorb(off, 8) // what a plain store left there is an age of its own
	atomic.StoreUint64(&m.buf.words[off/8], v)
	m.absorb(off, 8)
}

// Fence makes durable what the handle wrote back and stored.
func (m *Machine) Fence(id int) error {
	defer m.enter().Unlock()
	e := m.sited(Event{Kind: Fence, Handle: id})
	n := m.fences
	m.fences++
	if m.cfg.Flavor == Redo {
		before := m.version
		m.redoOrder(m.handle(id))
		if m.version != before { // a crash now leaves part of it
			m.fire(Event{Kind: Sync, Handle: id, Site: e.Site})
		}
	}
	if f := m.cfg.FenceError; f != nil {
		if err := f(n); err != nil {
			m.fire(e)
			return err
		}
	}
	switch {
	case m.cfg.Flavor == Redo:
		m.redoSync(e.Dropped)
	case !e.Dropped:
		m.orderHandle(m.handle(id))
	}
	m.fire(e)
	if every := m.cfg.CheckpointEvery; every > 0 && !e.Dropped && m.fences%every == 0 {
		m.checkpoint()
	}
	return nil
}

// Point marks a named place in the code.
func (m *Machine) Point(name string) {
	defer m.enter().Unlock()
	m.fire(Event{Kind: Point, Name: name})
}

// OnEvent calls f after every event, while the machine is stopped. f must not
// cause events on this machine.
func (m *Machine) OnEvent(f func(Event)) { m.hooks = append(m.hooks, f) }

// Stopped runs f between two events. f must not cause events on this machine.
func (m *Machine) Stopped(f func()) {
	defer m.enter().Unlock()
	f()
}

// Quiet runs f, whose events are numbered and take effect but are not crash
// points, have no site and are never dropped: for the formatting and filling
// that a test starts from.
func (m *Machine) Quiet(f func()) {
	m.shift(1)
	defer m.shift(-1)
	f()
}

func (m *Machine) shift(by int) {
	defer m.enter().Unlock()
	m.quiet += by
}

// Recovered ends the exploration of crashes during recovery: the events that
// check causes from here on are not crash points.
func (m *Machine) Recovered() {
	defer m.enter().Unlock()
	if m.x != nil && m.x.depth > 0 {
		m.x = nil
	}
}

// Events returns how many events there were.
func (m *Machine) Events() int { return m.events }

// Counts returns how many events of each kind there were.
func (m *Machine) Counts() map[Kind]int { return maps.Clone(m.counts) }

// SiteCounts returns how many events each call site caused, on this machine and
// on those related to it by crashes. It is empty unless sites are recorded.
func (m *Machine) SiteCounts() map[Site]int { return m.sites.snapshot() }

// Unannounced returns the words that were stored to without a Wrote, WriteBack
// or Store that names them, and are therefore missing from crash images.
func (m *Machine) Unannounced() []persist.Off {
	var offs []persist.Off
	for i := range m.buf.words[:m.size.Load()/8] {
		if atomic.LoadUint64(&m.buf.words[i]) != m.buf.known[i] {
			offs = append(offs, persist.Off(i*8))
		}
	}
	return offs
}

// Release gives the machine's memory to later machines. Nothing may use the
// machine, or a region on it, afterwards.
func (m *Machine) Release() {
	m.gate.Lock()
	defer m.gate.Unlock()
	if !m.dead {
		m.dead = true
		m.x = nil
		m.buf.put(int(m.size.Load()))
	}
}

func (m *Machine) enter() *sync.Mutex {
	m.gate.Lock()
	if m.dead {
		m.gate.Unlock()
		panic("crashsim: a machine was used after its check returned: stop what runs on it first")
	}
	return &m.gate
}

func (m *Machine) check(off persist.Off, n int) {
	if size := m.size.Load(); n < 0 || uint64(off) > size || uint64(n) > size-uint64(off) {
		panic(fmt.Sprintf("crashsim: range [%#x, +%d) outside the %d backed bytes", uint64(off), n, size))
	}
}

func (m *Machine) handle(id int) *handle {
	h := m.handles[id]
	if h == nil {
		h = &handle{}
		m.handles[id] = h
	}
	return h
}

// fire numbers the event and shows it to the hooks.
func (m *Machine) fire(e Event) {
	if m.cfg.Strict && (e.Kind == Order || e.Kind == Store || e.Kind == Fence) {
		if u := m.Unannounced(); len(u) > 0 {
			panic(fmt.Sprintf("crashsim: %v, after plain stores to %d words that were not announced, the first at %#x", e, len(u), uint64(u[0])))
		}
	}
	m.events++
	e.N = m.events
	m.counts[e.Kind]++
	for _, f := range m.hooks {
		f(e)
	}
	if m.x != nil && m.quiet == 0 {
		m.x.event(m, e)
	}
}

// sited records where the event comes from and whether it is dropped.
func (m *Machine) sited(e Event) Event {
	if m.quiet > 0 || !m.cfg.Sites && m.cfg.Drop == nil {
		return e
	}
	e.Site = callSite()
	n := m.sites.add(Site{e.Kind, e.Site})
	e.Dropped = m.cfg.Drop != nil && m.cfg.Drop(e.Kind, e.Site, n)
	return e
}

type siteTable struct {
	mu     sync.Mutex
	counts map[Site]int
}

func (t *siteTable) add(s Site) (before int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before = t.counts[s]
	t.counts[s]++
	return before
}

func newSites() *siteTable { return &siteTable{counts: map[Site]int{}} }

func (t *siteTable) snapshot() map[Site]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

const (
	module     = "github.com/tidemark-db/tidemark"
	persistPkg = module + "/persist"
	ownPkg     = persistPkg + "/crashsim"
)

// callSite names the nearest caller outside persist and crashsim; test files of
// the two count as outside.
func callSite() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if pkg := packageOf(f.Function); (pkg != persistPkg && pkg != ownPkg) || strings.HasSuffix(f.File, "_test.go") {
			pkg = strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
			file := f.File[strings.LastIndexByte(f.File, '/')+1:]
			if pkg != "" {
				file = pkg + "/" + file
			}
			return fmt.Sprintf("%s:%d", file, f.Line)
		}
		if !more {
			return "?"
		}
	}
}

func packageOf(function string) string {
	function, _, _ = strings.Cut(function, "[")
	slash := strings.LastIndexByte(function, '/') + 1
	if dot := strings.IndexByte(function[slash:], '.'); dot >= 0 {
		return function[:slash+dot]
	}
	return function
}
