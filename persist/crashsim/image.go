package crashsim

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/tidemark-db/tidemark/persist"
)

// kill is the Choice of a process crash that leaves the media's uncertainty
// pending.
const kill = "kill"

// variable is one line, or with Words one word, that a crash decides on.
type variable struct {
	off    persist.Off
	opts   []option // distinct, oldest first
	newest int
}

type option struct {
	c    content // a whole line, or the word in c[0]
	hash uint64
}

// frame is the set of images that keep the same number of log records.
type frame struct {
	m    *Machine
	log  int                // records kept beyond the durable ones
	sum  uint64             // hash of everything but vars
	set  map[uint32]content // lines to put over the known content, before vars
	vars []variable
}

func (m *Machine) newFrame(log int) *frame {
	f := &frame{m: m, log: log, sum: m.sum, set: map[uint32]content{}}
	over := map[uint32][]*part{}
	for i := range m.pending[:log] {
		for j := range m.pending[i].parts {
			p := &m.pending[i].parts[j]
			over[p.ln] = append(over[p.ln], p)
		}
	}
	lines := m.order
	if len(over) > 0 {
		lines = slices.Clone(lines)
		for ln := range over {
			if m.live[ln] == nil {
				lines = append(lines, ln)
			}
		}
		slices.Sort(lines)
	}
	for _, ln := range lines {
		f.add(ln, m.live[ln], over[ln])
	}
	return f
}

func (f *frame) add(ln uint32, l *line, over []*part) {
	known := f.m.buf.line(ln)
	now := *known
	ages := []age{{now, 0}}
	if l != nil {
		ages = l.ages
		if f.m.cfg.Flavor == Redo {
			under := part{mask: l.mask, c: l.val}
			under.over(&now)
		}
	}
	all := make([]content, len(ages))
	for i := range ages {
		all[i] = ages[i].c
		for _, p := range over {
			p.over(&all[i])
		}
	}
	for _, p := range over {
		p.over(&now)
	}

	f.sum -= hashLine(ln, known)
	if !f.m.cfg.Words {
		v := variable{off: persist.Off(ln) * persist.LineSize}
		v.opts, v.newest = distinct(all, now, func(c *content) uint64 { return hashLine(ln, c) })
		if len(v.opts) > 1 {
			f.vars = append(f.vars, v)
			return
		}
		f.sum += v.opts[0].hash
		if v.opts[0].c != *known {
			f.set[ln] = v.opts[0].c
		}
		return
	}
	for w := range now {
		at := int(ln)*lineWords + w
		words := make([]content, len(all))
		for i := range all {
			words[i][0] = all[i][w]
		}
		v := variable{off: persist.Off(at * 8)}
		v.opts, v.newest = distinct(words, content{now[w]}, func(c *content) uint64 { return hashWord(at, c[0]) })
		if len(v.opts) > 1 {
			f.vars = append(f.vars, v)
			continue
		}
		f.sum += v.opts[0].hash
		if v.opts[0].c[0] != known[w] {
			c, ok := f.set[ln]
			if !ok {
				c = *known
			}
			c[w] = v.opts[0].c[0]
			f.set[ln] = c
		}
	}
}

// distinct drops what came before, and finds the newest.
func distinct(all []content, now content, hash func(*content) uint64) (opts []option, newest int) {
	for i := range all {
		h := hash(&all[i])
		if !slices.ContainsFunc(opts, func(o option) bool { return o.hash == h && o.c == all[i] }) {
			opts = append(opts, option{all[i], h})
		}
	}
	newest = slices.IndexFunc(opts, func(o option) bool { return o.c == now })
	return opts, max(newest, 0)
}

// count is how many images the frame has, at most math.MaxUint64.
func (f *frame) count() uint64 {
	n := uint64(1)
	for i := range f.vars {
		hi, lo := bits.Mul64(n, uint64(len(f.vars[i].opts)))
		if n = lo; hi != 0 {
			return math.MaxUint64
		}
	}
	return n
}

// image is one choice of a frame: the option of each variable.
type image struct {
	f    *frame
	pick []int
}

func (g image) hash() uint64 {
	sum := g.f.sum
	for i, p := range g.pick {
		sum += g.f.vars[i].opts[p].hash
	}
	return sum + mix(g.f.m.size.Load())
}

// choice names the image: "log=" records kept beyond the durable ones, if any;
// then the oldest or newest content for all but the listed offsets, which have
// the option of that number.
func (g image) choice() string {
	old, young := 0, 0 // how many are not
	for i, p := range g.pick {
		if p != 0 {
			old++
		}
		if p != g.f.vars[i].newest {
			young++
		}
	}
	var b strings.Builder
	if g.f.log > 0 {
		fmt.Fprintf(&b, "log=%d,", g.f.log)
	}
	fewer := old <= young
	if fewer {
		b.WriteString("old")
	} else {
		b.WriteString("new")
	}
	for i, p := range g.pick {
		v := &g.f.vars[i]
		if fewer && p != 0 || !fewer && p != v.newest {
			fmt.Fprintf(&b, ",%x:%d", uint64(v.off), p)
		}
	}
	return b.String()
}

func (m *Machine) parse(choice string) (image, error) {
	bad := func(why string) (image, error) {
		return image{}, fmt.Errorf("crashsim: no image %q here: %s", choice, why)
	}
	fields := strings.Split(choice, ",")
	log := 0
	if s, ok := strings.CutPrefix(fields[0], "log="); ok {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > len(m.pending) || len(fields) < 2 {
			return bad(fmt.Sprintf("the log has %d records that are not durable", len(m.pending)))
		}
		log, fields = n, fields[1:]
	}
	f := m.newFrame(log)
	g := image{f, make([]int, len(f.vars))}
	switch fields[0] {
	case "old":
	case "new":
		g = f.newest()
	default:
		return bad("it begins with neither old nor new")
	}
	for _, s := range fields[1:] {
		at, p, ok := strings.Cut(s, ":")
		off, err1 := strconv.ParseUint(at, 16, 64)
		opt, err2 := strconv.Atoi(p)
		if !ok || err1 != nil || err2 != nil {
			return bad(s)
		}
		i := slices.IndexFunc(f.vars, func(v variable) bool { return uint64(v.off) == off })
		if i < 0 || opt < 0 || opt >= len(f.vars[i].opts) {
			return bad(fmt.Sprintf("offset %#x has no option %d", off, opt))
		}
		g.pick[i] = opt
	}
	return g, nil
}

func (f *frame) oldest() image { return image{f, make([]int, len(f.vars))} }

func (f *frame) newest() image {
	g := f.oldest()
	for i := range f.vars {
		g.pick[i] = f.vars[i].newest
	}
	return g
}

// with is the image with one variable changed.
func (g image) with(i, p int) image {
	pick := slices.Clone(g.pick)
	pick[i] = p
	return image{g.f, pick}
}

// images enumerates what a crash now can leave: everything if that is at most
// limit images, and else the telling ones first and a sample. left counts those
// not enumerated.
func (m *Machine) images(limit int, rng *rand.Rand) (seq iter.Seq[image], left uint64) {
	frames := make([]*frame, len(m.pending)+1)
	at := func(log int) *frame {
		if frames[log] == nil {
			frames[log] = m.newFrame(log)
		}
		return frames[log]
	}
	total := uint64(0)
	for log := range frames {
		if log > limit {
			total = math.MaxUint64
		}
		if total == math.MaxUint64 {
			break // too many for more than an idea of their number
		}
		sum, carry := bits.Add64(total, at(log).count(), 0)
		if total = sum; carry != 0 {
			total = math.MaxUint64
		}
	}
	if total <= uint64(max(limit, 0)) {
		return func(yield func(image) bool) {
			for log := range frames {
				if !at(log).all(yield) {
					return
				}
			}
		}, 0
	}
	return func(yield func(image) bool) {
		n := 0
		give := func(g image) bool { n++; return n <= limit && yield(g) }
		first, last := at(0), at(len(frames)-1)
		ends := []*frame{first, last}
		if first == last {
			ends = ends[:1]
		}
		for _, f := range ends {
			if !give(f.oldest()) || !give(f.newest()) {
				return
			}
		}
		type single struct {
			base image
			i, p int
		}
		var singles []single
		for _, f := range ends {
			oldest, newest := f.oldest(), f.newest()
			for i := range f.vars {
				v := &f.vars[i]
				if v.newest != 0 {
					singles = append(singles, single{oldest, i, v.newest}, single{newest, i, 0})
				}
			}
		}
		if len(singles) > limit-n {
			rng.Shuffle(len(singles), func(i, j int) { singles[i], singles[j] = singles[j], singles[i] })
		}
		for _, s := range singles {
			if !give(s.base.with(s.i, s.p)) {
				return
			}
		}
		// A frame costs a pass over all lines: a few cuts of a long log have to do.
		var cuts [16]int
		for i := range cuts {
			cuts[i] = rng.IntN(len(frames))
		}
		cuts[0], cuts[1] = 0, len(frames)-1
		for {
			f := at(cuts[rng.IntN(len(cuts))])
			g := f.oldest()
			for i := range g.pick {
				g.pick[i] = rng.IntN(len(f.vars[i].opts))
			}
			if !give(g) {
				return
			}
		}
	}, total - uint64(max(limit, 0))
}

// all enumerates the frame's images, the oldest first.
func (f *frame) all(yield func(image) bool) bool {
	pick := make([]int, len(f.vars))
	for {
		if !yield(image{f, pick}) {
			return false
		}
		i := len(pick) - 1
		for ; i >= 0; i-- {
			if pick[i]++; pick[i] < len(f.vars[i].opts) {
				break
			}
			pick[i] = 0
		}
		if i < 0 {
			return true
		}
	}
}

// boot starts a machine on the image.
func (g image) boot() *Machine {
	n := g.f.m.Clone()
	for ln, c := range g.f.set {
		n.put(ln, &c)
	}
	for i, p := range g.pick {
		v := &g.f.vars[i]
		ln := uint32(v.off / persist.LineSize)
		c := v.opts[p].c
		if n.cfg.Words {
			word := c[0]
			c = *n.buf.line(ln)
			c[v.off/8%lineWords] = word
		}
		n.put(ln, &c)
	}
	return n
}

// put sets a line of a machine that nobody runs on yet.
func (m *Machine) put(ln uint32, c *content) {
	m.sum += m.buf.setLine(ln, c)
	copy(m.buf.words[int(ln)*lineWords:], c[:])
}

// Images boots a machine on every distinct image that a crash now can leave, if
// there are at most limit, and else on a sample of about that many. The string
// is the image's name for [Machine.Crash]. rng may be nil.
func (m *Machine) Images(limit int, rng *rand.Rand) iter.Seq2[string, *Machine] {
	if rng == nil {
		rng = rand.New(rand.NewPCG(1, 1))
	}
	return func(yield func(string, *Machine) bool) {
		seen := map[uint64]bool{}
		seq, _ := m.images(limit, rng)
		for g := range seq {
			if h := g.hash(); !seen[h] {
				seen[h] = true
				if !yield(g.choice(), g.boot()) {
					return
				}
			}
		}
	}
}

// Crash boots a machine on the image of that name: one that Images or a Crash
// gave at the same event, or "old", "new" or "kill". It panics if there is no
// such image.
func (m *Machine) Crash(choice string) *Machine {
	n, err := m.crash(choice)
	if err != nil {
		panic(err)
	}
	return n
}

func (m *Machine) crash(choice string) (*Machine, error) {
	if choice == kill {
		return m.Kill(), nil
	}
	g, err := m.parse(choice)
	if err != nil {
		return nil, err
	}
	return g.boot(), nil
}

// Clone boots a machine on the volatile content, all of it durable: what a test
// builds once and starts from many times.
func (m *Machine) Clone() *Machine {
	n := newMachine(m.cfg, m.sites)
	n.size.Store(m.size.Load())
	n.sum = m.sum
	m.buf.eachPage(func(lo int) {
		copy(n.buf.words[lo:lo+pageWords], m.buf.known[lo:lo+pageWords])
		copy(n.buf.known[lo:lo+pageWords], m.buf.known[lo:lo+pageWords])
	})
	copy(n.buf.pages, m.buf.pages)
	return n
}

// Kill boots a machine after the process alone ended. Its memory is the volatile
// content, but what was not durable still is not, so that a power loss may take
// it later. What handles wrote back without an order is forgotten; so are, on
// Redo, stores not yet ordered. A Redo machine finds the whole log in the page
// cache: it is replayed over memory and, since an open syncs what it replays,
// durable from then on.
func (m *Machine) Kill() *Machine {
	n := m.Clone()
	if m.cfg.Flavor == Process {
		return n
	}
	n.order = slices.Clone(m.order)
	for ln, l := range m.live {
		k := *l
		k.ages = slices.Clone(l.ages)
		n.live[ln] = &k
	}
	for i := range m.pending {
		for j := range m.pending[i].parts {
			n.redoDurable(&m.pending[i].parts[j])
		}
	}
	if m.cfg.Flavor == Redo {
		for _, ln := range slices.Sorted(maps.Keys(n.live)) {
			l, c := n.live[ln], *n.buf.line(ln)
			under := part{mask: l.mask, c: l.val}
			under.over(&c)
			n.put(ln, &c)
		}
	}
	return n
}
