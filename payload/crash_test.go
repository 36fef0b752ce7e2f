package payload_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/internal/history"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
	"github.com/tidemark-db/tidemark/recovery"
)

var (
	crashLength    = flag.Int("crash.length", 2, "steps of the histories that are enumerated, before the last ticks")
	crashLetters   = flag.String("crash.letters", "nkegRcxvt", "steps they are made of")
	crashHistories = flag.Int("crash.histories", 6, "random histories of the crash tests, for each flavour")
	crashSteps     = flag.Int("crash.steps", 10, "steps of a random history")
	crashImages    = flag.Int("crash.images", 6, "images tried at each crash point")
	crashSeed      = flag.Uint64("crash.seed", 1, "seed of the first random history")
)

var ctx = context.Background()

// record is a typed payload: a key, and its value twice.
type record struct {
	Key  [8]byte
	N    uint64
	Twin [3]uint64
}

var recordType = payload.MustType[record]("record")

const bytesTag = 77 // of payloads that hold "key=" and a value

// bag is a structure over payloads: a table from keys to them.
type bag struct {
	s     *tidemark.Structure
	refs  map[string]payload.Ref
	stamp map[string]uint64 // newest epoch in which a key changed
	limbo []payload.Ref     // retired, not reclaimed
}

// world is two bags on a simulated machine, and what is known of them.
type world struct {
	m    *crashsim.Machine
	r    *persist.Region
	h    *tidemark.Heap
	bags map[string]*bag
	o    *history.Oracle
	late *work
	seq  int
}

// work is an operation under way.
type work struct {
	w       *world
	op      tidemark.Op
	changes []history.Change
	undo    []func()
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
	return &world{m: m, r: r, h: h, bags: map[string]*bag{}, o: o}, nil
}

// open opens a bag, which it records as made if it was not there.
func (w *world) open(name string) error {
	fresh := true
	for _, s := range w.h.Structures() {
		fresh = fresh && s.Name != name
	}
	s, err := w.h.OpenStructure(name, "bag", recordType.Descriptor())
	if err != nil {
		return err
	}
	b := &bag{s: s, refs: map[string]payload.Ref{}, stamp: map[string]uint64{}}
	w.bags[name] = b
	if fresh {
		w.o.Ended(w.h.Epoch(), history.Change{Key: name})
	}
	return s.Rebuild(ctx, 1, func(_ int, it *recovery.Iterator) error {
		k, _, err := b.decode(it.Ref(), it.Tag())
		if err != nil {
			return err
		}
		if b.refs[k] != 0 {
			return fmt.Errorf("%s/%s is there twice", name, k)
		}
		b.refs[k] = it.Ref()
		return nil
	})
}

// decode reads key and value of a payload.
func (b *bag) decode(ref payload.Ref, tag uint16) (k, v string, err error) {
	switch tag {
	case 1:
		r, err := recordType.View(b.s.Space(), ref)
		if err != nil {
			return "", "", err
		}
		if r.Twin != [3]uint64{r.N, r.N, r.N} {
			return "", "", fmt.Errorf("record %+v is torn", *r)
		}
		return strings.TrimRight(string(r.Key[:]), "\x00"), fmt.Sprintf("%08d", r.N), nil
	case bytesTag:
		c := b.s.Space().Bytes(ref)
		k, v, ok := bytes.Cut(c, []byte("="))
		if !ok {
			return "", "", fmt.Errorf("payload %.20q has no key", c)
		}
		return string(k), string(v), nil
	}
	return "", "", fmt.Errorf("payload with tag %d", tag)
}

// state reads what is there: the bags, and their entries as "bag/key".
func (w *world) state() (map[string]string, error) {
	s := map[string]string{}
	for _, i := range w.h.Structures() {
		if w.bags[i.Name] == nil {
			if err := w.open(i.Name); err != nil {
				return nil, err
			}
		}
		s[i.Name] = ""
		b := w.bags[i.Name]
		for k, ref := range b.refs {
			_, v, err := b.decode(ref, b.s.Space().Tag(ref))
			if err != nil {
				return nil, err
			}
			s[i.Name+"/"+k] = v
		}
	}
	return s, nil
}

// value makes a value of size bytes. Where a large one may come to lie on the first
// bytes of a unit, or on the control words of another class, it has a word that
// looks like a superblock header: nothing may ever take contents for those. The
// rest is zero, so that there are few lines for a crash to decide on.
func (w *world) value(key string, size int) string {
	w.seq++
	v := make([]byte, size)
	digits := fmt.Sprintf("%08d", w.seq)
	header := persist.Seal(2<<32 | 1<<8) // one unit of the smallest class, owned by the first structure
	for at := persist.UnitSize - persist.LineSize - 24 - len(key) - 1; at+256 <= size; at += persist.UnitSize {
		for i := range 32 { // as a header, and as control words behind it
			binary.LittleEndian.PutUint64(v[at+8*i:], header)
		}
	}
	at := copy(v, digits)
	for ; (at+len(key)+1)%8 != 0 && at < size; at++ {
		v[at] = '.'
	}
	for ; at+8 <= min(size, 2048); at += 8 {
		binary.LittleEndian.PutUint64(v[at:], header)
	}
	return string(v)
}

func (w *world) begin() *work { return &work{w: w, op: w.h.Begin()} }

func (x *work) end() {
	e := x.op.Epoch()
	x.op.End()
	if len(x.changes) > 0 {
		x.w.o.Ended(e, x.changes...)
	}
}

func (x *work) abort() {
	x.op.Abort()
	for i := len(x.undo) - 1; i >= 0; i-- {
		x.undo[i]()
	}
}

var errSkip = errors.New("step does not apply")

// reach looks up a key for a change: free for this operation to change, and not
// changed by a newer one. What payloads themselves say of that is checked. there
// says that the step makes no sense without the key.
func (x *work) reach(bagName, k string, there bool) (*bag, payload.Ref, error) {
	b := x.w.bags[bagName]
	if b == nil || there && b.refs[k] == 0 {
		return nil, 0, errSkip
	}
	if l := x.w.late; l != nil && l != x {
		for _, c := range l.changes {
			if c.Key == bagName+"/"+k {
				return nil, 0, errSkip
			}
		}
	}
	ref := b.refs[k]
	if ref != 0 {
		newer := payload.Word(x.w.r.Load(persist.Off(ref))).Epoch() > x.op.Epoch()
		s := b.s.Space()
		_, errGet := s.Get(x.op, ref)
		if newer != errors.Is(errGet, tidemark.ErrOldSeesNew) || !newer && errGet != nil {
			return nil, 0, fmt.Errorf("Get of %s by an operation of epoch %d: %v", k, x.op.Epoch(), errGet)
		}
		if newer {
			_, errUpdate := s.Update(x.op, ref, func([]byte) { panic("called") })
			for _, err := range []error{errUpdate, s.Delete(x.op, ref), s.Retire(x.op, ref)} {
				if !errors.Is(err, tidemark.ErrOldSeesNew) {
					return nil, 0, fmt.Errorf("change of the newer %s by an operation of epoch %d: %v", k, x.op.Epoch(), err)
				}
			}
			return nil, 0, tidemark.ErrOldSeesNew
		}
	}
	if b.stamp[k] > x.op.Epoch() {
		return nil, 0, tidemark.ErrOldSeesNew
	}
	stamp := b.stamp[k]
	x.undo = append(x.undo, func() {
		b.stamp[k] = stamp
		if delete(b.refs, k); ref != 0 {
			b.refs[k] = ref
		}
	})
	b.stamp[k] = x.op.Epoch()
	return b, ref, nil
}

// put creates a payload, in place of one that is there.
func (x *work) put(bagName, k string, size int) error {
	b, old, err := x.reach(bagName, k, false)
	if err != nil {
		return err
	}
	v := x.w.value(k, size)
	var ref payload.Ref
	if k == "t" {
		n := uint64(x.w.seq)
		rec := record{N: n, Twin: [3]uint64{n, n, n}}
		copy(rec.Key[:], k)
		v = v[:8]
		ref, err = recordType.New(x.op, b.s.Space(), rec)
	} else {
		ref, err = b.s.Space().New(x.op, bytesTag, []byte(k), []byte("="), []byte(v))
	}
	if err != nil {
		return err
	}
	if old != 0 {
		if err := b.s.Space().Delete(x.op, old); err != nil {
			return err
		}
	}
	b.refs[k] = ref
	x.changes = append(x.changes, history.Change{Key: bagName + "/" + k, Val: v})
	return nil
}

// update changes a payload; one of this epoch must stay where it is, an older one
// must not.
func (x *work) update(bagName, k string) error {
	b, old, err := x.reach(bagName, k, true)
	if err != nil {
		return err
	}
	x.w.seq++
	n, v := uint64(x.w.seq), ""
	same := payload.Word(x.w.r.Load(persist.Off(old))).Epoch() == x.op.Epoch()
	var ref payload.Ref
	if k == "t" {
		ref, err = recordType.Update(x.op, b.s.Space(), old, func(r *record) { r.N, r.Twin = n, [3]uint64{n, n, n} })
		v = fmt.Sprintf("%08d", n)
	} else {
		ref, err = b.s.Space().Update(x.op, old, func(c []byte) {
			copy(c[len(k)+1:], fmt.Sprintf("%08d", n))
			v = string(c[len(k)+1:])
		})
	}
	if err != nil {
		return err
	}
	if (ref == old) != same && !inPlaceAnyway() {
		return fmt.Errorf("update of %s, same epoch: %v, moved it from %#x to %#x", k, same, old, ref)
	}
	b.refs[k] = ref
	x.changes = append(x.changes, history.Change{Key: bagName + "/" + k, Val: v})
	return nil
}

// remove takes a key away: by Delete, or by Retire with the Reclaim now or later.
func (x *work) remove(bagName, k string, how byte) error {
	b, ref, err := x.reach(bagName, k, true)
	if err != nil {
		return err
	}
	switch how {
	case 'd':
		err = b.s.Space().Delete(x.op, ref)
	case 'r':
		if err = b.s.Space().Retire(x.op, ref); err == nil {
			err = b.s.Space().Reclaim(x.op, ref)
		}
	case 'R':
		err = b.s.Space().Retire(x.op, ref)
		n := len(b.limbo)
		x.undo = append(x.undo, func() { b.limbo = b.limbo[:n] })
		b.limbo = append(b.limbo, ref)
	}
	if err != nil {
		return err
	}
	delete(b.refs, k)
	x.changes = append(x.changes, history.Change{Key: bagName + "/" + k, Gone: true})
	return nil
}

// reclaim gives back what was retired earlier.
func (x *work) reclaim(bagName string) error {
	b := x.w.bags[bagName]
	if b == nil || x.w.late != nil && x.w.late != x {
		return errSkip
	}
	for _, ref := range b.limbo {
		if err := b.s.Space().Reclaim(x.op, ref); err != nil {
			return err
		}
	}
	limbo := b.limbo
	x.undo = append(x.undo, func() { b.limbo = limbo })
	b.limbo = nil
	return nil
}

// draft fills a payload and does not publish it.
func (x *work) draft(bagName string) error {
	b := x.w.bags[bagName]
	if b == nil {
		return errSkip
	}
	d, err := b.s.Space().Draft(x.op, bytesTag, 30)
	if err != nil {
		return err
	}
	copy(d.Bytes, x.w.value("never", 30))
	for _, off := range x.w.m.Unannounced() {
		x.w.r.Wrote(off, 8)
	}
	return nil
}

// A step is one letter of a history:
//
//	n        create n                         k l N T  update k, l, n, t (typed)
//	d e g h  delete k, l, n, t                r        retire and reclaim k
//	R c      retire l; reclaim what was       w        create, change, delete, create in both bags
//	x X v    operations that are aborted      f        a draft that is not published
//	( + _    begin a late operation, go on    ) ]      end it, abort it
//	t s      tick, sync                       S M L W  blocks of other size classes, runs
//	q Q      drop b, and make it anew
//
// At first there are k and t of old epochs, and l of the one before.
func (w *world) step(s byte) error {
	switch s {
	case 't', 's':
		if w.late != nil && (s == 's' || w.late.op.Epoch() < w.h.Epoch()) {
			w.late.end() // it holds the clock
			w.late = nil
		}
		f := w.h.Tick
		if s == 's' {
			f = w.h.Sync
		}
		if err := f(ctx); err != nil {
			return err
		}
		w.o.Acked(w.h.DurableEpoch())
		return nil
	case '(':
		if w.late == nil {
			w.late = w.begin()
			return w.goOn(w.late.update("b", "k"))
		}
		return nil
	case '+', '_', ')', ']':
		switch x := w.late; {
		case x == nil:
		case s == '+':
			err := x.update("a", "l")
			if err == nil {
				err = x.remove("a", "k", 'd')
			}
			return w.goOn(err)
		case s == '_':
			err := x.put("a", "n", 20)
			if err == nil {
				err = x.remove("a", "t", 'r')
			}
			return w.goOn(err)
		case s == ')':
			x.end()
			w.late = nil
		case s == ']':
			x.abort()
			w.late = nil
		}
		return nil
	}
	if s == 'q' || s == 'Q' {
		err := w.drop("b")
		if s == 'Q' && err == nil && w.bags["b"] == nil {
			err = w.open("b")
		}
		return err
	}
	x := w.begin()
	err := x.steps(s)
	switch {
	case errors.Is(err, errSkip):
		x.abort()
		return nil
	case err != nil:
		x.abort()
		return err
	}
	x.end()
	return nil
}

// drop removes a bag.
func (w *world) drop(name string) error {
	if w.late != nil || w.bags[name] == nil {
		return nil
	}
	if err := w.bags[name].s.Close(); err != nil {
		return err
	}
	delete(w.bags, name)
	gone := []history.Change{{Key: name, Gone: true}}
	for k := range w.o.State(1 << 62) {
		if strings.HasPrefix(k, name+"/") {
			gone = append(gone, history.Change{Key: k, Gone: true})
		}
	}
	w.o.Ended(w.h.Epoch(), gone...)
	if err := w.h.Drop(ctx, name); err != nil {
		return err
	}
	w.o.Acked(w.h.DurableEpoch())
	return nil
}

// goOn has the late operation give up when it must.
func (w *world) goOn(err error) error {
	if errors.Is(err, tidemark.ErrOldSeesNew) {
		w.late.abort()
		w.late = nil
		return nil
	}
	if errors.Is(err, errSkip) {
		return nil
	}
	return err
}

func (x *work) steps(s byte) error {
	all := func(f ...func() error) error {
		for _, f := range f {
			if err := f(); err != nil && !errors.Is(err, errSkip) {
				return err
			}
		}
		return nil
	}
	put := func(b, k string, size int) func() error { return func() error { return x.put(b, k, size) } }
	update := func(b, k string) func() error { return func() error { return x.update(b, k) } }
	remove := func(b, k string, how byte) func() error { return func() error { return x.remove(b, k, how) } }
	undone := func() error { return errSkip }
	switch s {
	case 'n':
		return x.put("a", "n", 20)
	case 'k':
		return x.update("a", "k")
	case 'l':
		return x.update("a", "l")
	case 'N':
		return x.update("a", "n")
	case 'T':
		return x.update("a", "t")
	case 'd', 'e', 'g', 'h':
		return x.remove("a", map[byte]string{'d': "k", 'e': "l", 'g': "n", 'h': "t"}[s], 'd')
	case 'r':
		return x.remove("a", "k", 'r')
	case 'R':
		return x.remove("a", "l", 'R')
	case 'c':
		return x.reclaim("a")
	case 'w':
		return all(put("a", "n", 20), put("b", "k", 20), update("a", "n"), update("b", "k"), remove("a", "n", 'd'), put("a", "n", 20), remove("a", "t", 'r'), put("a", "t", 20))
	case 'f':
		return all(func() error { return x.draft("a") }, update("a", "k"))
	case 'x':
		if err := all(update("a", "k"), update("a", "n"), remove("a", "l", 'd'), put("a", "z", 20), put("b", "y", 20), remove("b", "y", 'd'), remove("a", "t", 'r'), update("a", "n")); err != nil {
			return err
		}
		return undone()
	case 'X':
		if err := all(remove("a", "n", 'd'), put("a", "n", 20), update("a", "n"), update("a", "l"), remove("a", "l", 'r'), func() error { return x.reclaim("a") }, remove("a", "k", 'R')); err != nil {
			return err
		}
		return undone()
	case 'v':
		if err := all(remove("a", "n", 'r'), remove("a", "l", 'd'), update("a", "k"), update("b", "k"), func() error { return x.draft("b") }); err != nil {
			return err
		}
		return undone()
	case 'S': // two superblocks, one of which is given up
		if err := all(put("a", "s0", 20<<10), put("a", "s1", 20<<10), put("a", "s2", 20<<10), put("a", "s3", 20<<10)); err != nil {
			return err
		}
		return all(remove("a", "s0", 'd'), remove("a", "s1", 'd'), remove("a", "s2", 'd'), remove("a", "s3", 'd'))
	case 'M':
		return x.put("b", "m", 1000)
	case 'L': // a run, there or not there
		if err := x.remove("a", "big", 'd'); !errors.Is(err, errSkip) {
			return err
		}
		return x.put("a", "big", 300<<10)
	case 'W': // a class of several units
		if err := x.remove("b", "wide", 'r'); !errors.Is(err, errSkip) {
			return err
		}
		return x.put("b", "wide", 36<<10)
	}
	return fmt.Errorf("no such step")
}

func (w *world) run(steps string) error {
	for i := range len(steps) {
		if err := w.step(steps[i]); err != nil {
			return fmt.Errorf("step %c: %w", steps[i], err)
		}
	}
	if w.late != nil {
		w.late.abort()
		w.late = nil
	}
	return nil
}

// fill makes what every history begins with.
func (w *world) fill() error {
	err := errors.Join(w.open("a"), w.open("b"))
	one := func(f func(*work) error) {
		if err == nil {
			x := w.begin()
			err = f(x)
			x.end()
		}
	}
	one(func(x *work) error { return errors.Join(x.put("a", "k", 20), x.put("a", "t", 20)) })
	if err == nil {
		err = w.run("ttt")
	}
	one(func(x *work) error { return errors.Join(x.put("a", "l", 20), x.put("b", "k", 20)) })
	if err == nil {
		err = w.run("t")
	}
	return err
}

// drive runs a history on a new machine. One that starts with '!' is crashed
// while the heap and its bags are made, too.
func drive(m *crashsim.Machine, o *history.Oracle, steps string) error {
	var w *world
	var err error
	create := func() {
		if w, err = openWorld(m, o); err == nil {
			err = w.fill()
		}
	}
	if strings.HasPrefix(steps, "!") {
		steps = steps[1:]
		create()
	} else {
		m.Quiet(create)
	}
	if err == nil {
		err = w.run(steps)
	}
	if err != nil {
		return err
	}
	have, err := w.state()
	if err == nil {
		err = o.Check(1<<60, have) // what aborts left, without a crash
	}
	if err != nil {
		return err
	}
	if u := m.Unannounced(); len(u) > 0 {
		return fmt.Errorf("stores to %#x and %d more words were not announced", u[0], len(u)-1)
	}
	return nil
}

// wide steps write so much that deciding on each word is slow.
const wide = "SMLW"

// explore runs a history and checks crash images at every event.
func explore(opt crashsim.Options, steps string) (crashsim.Report, error) {
	return new(checker).explore(opt, steps)
}

func (x *checker) explore(opt crashsim.Options, steps string) (crashsim.Report, error) {
	x.seed = opt.Seed
	x.prepare(&opt, steps)
	return crashsim.Explore(opt, func(m *crashsim.Machine) error {
		return drive(m, x.reset(), steps)
	}, x.check)
}

// checker checks images of one exploration.
type checker struct {
	o      *history.Oracle
	seed   uint64
	bounds []uint64 // boundary of the crash at each depth
	every  bool     // every recovery is crashed and every image worked on
}

func (x *checker) prepare(opt *crashsim.Options, steps string) {
	opt.Size = 10 << 16
	if strings.ContainsAny(steps, wide) {
		opt.Size = 24 << 16
	}
	opt.Kills = true
	opt.Key = func() uint64 { return x.o.Version() }
}

func (x *checker) reset() *history.Oracle {
	x.o = history.New(nil)
	return x.o
}

// boundary reads from a machine which epochs count.
func boundary(m *crashsim.Machine) uint64 {
	if m.Size() == 0 {
		return 0
	}
	clock, _ := persist.Unseal(binary.LittleEndian.Uint64(m.Memory()[persist.ClockOff:]))
	return max(clock, 2) - 2
}

// check recovers, compares with the oracle, works on, and crashes again. A crash
// in a recovery leaves what that recovery had decided, though it may have moved
// the clock already. Every image is recovered; a sample also crashes in its
// recovery, or is worked on and crashed again.
func (x *checker) check(m *crashsim.Machine, c crashsim.Crash) error {
	b := boundary(m)
	if c.Depth > 0 {
		b = min(b, x.bounds[c.Depth-1])
	}
	x.bounds = append(x.bounds[:c.Depth], b)
	pick := fnv.New32a()
	fmt.Fprint(pick, c.Event.N, c.Choice)
	luck := pick.Sum32() % 64
	if c.Choice == "kill" {
		luck /= 4
	}
	if x.every {
		luck = 0
	}
	if c.Depth == 0 && luck > 1 {
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
	if luck > 5 || c.Depth > 0 && (luck > 1 || c.Choice != "kill") {
		return nil
	}
	// A second generation: what is free must be, and what counts must stay.
	w.o = x.o.Next(b)
	w.seq = 1000
	for _, name := range []string{"a", "b"} {
		if w.bags[name] == nil {
			if err := w.open(name); err != nil {
				return err
			}
		}
	}
	for i, round := range []string{"nnltt", "Mx", "tdgk"} {
		if err := w.run(round); err != nil {
			return fmt.Errorf("second generation: %w", err)
		}
		if err := again(m, w.o, x.seed); err != nil {
			return fmt.Errorf("second crash, after %d rounds: %w", i+1, err)
		}
	}
	return nil
}

// again crashes the machine into a few images and recovers each.
func again(m *crashsim.Machine, o *history.Oracle, seed uint64) error {
	for choice, image := range m.Images(3, rand.New(rand.NewPCG(seed, 7))) {
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

// eachFlavor runs f for every flavour and reports what was covered.
func eachFlavor(t *testing.T, f func(t *testing.T, c crashsim.Config, total *crashsim.Report)) {
	for _, c := range flavors {
		t.Run(flavorName(c), func(t *testing.T) {
			var total crashsim.Report
			start := time.Now()
			f(t, c, &total)
			t.Logf("%.0f images a second; %v", float64(total.Checked)/time.Since(start).Seconds(), total)
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

// quick reports whether a part of the histories has to do.
func quick() bool { return testing.Short() || underRace }

// Histories that combine what the short ones cannot.
var histories = []string{
	"!ntt", "ntNtg", "ntNtNtg", "nNgt", "(t+t)tt", "(t_t]tt", "(tnk_)tt", "((t+_]tt", "Retct", "RtxctttXtt", "wtwtw", "xtXtvtt", "ntxtXtv",
	"fntft", "htTt", "TtTth", "rnttnttt", "dnttenttt", "LttLtttM", "SttttMSt", "WttWttttWt", "SMsLtLtttM", "LsLttttMtWt", "dtttnnnntt", "etttnnnntt", "Qnwt", "qntt", "SMt",
}

func TestCrashEveryHistory(t *testing.T) {
	eachFlavor(t, func(t *testing.T, c crashsim.Config, total *crashsim.Report) {
		t.Parallel()
		for i, h := range histories {
			if c.Words && strings.ContainsAny(h, wide) || quick() && i%4 > 0 {
				continue
			}
			rep, err := explore(crashsim.Options{Config: c, MaxImages: *crashImages, NestedImages: 3, Seed: *crashSeed}, h)
			if err != nil {
				t.Fatalf("history %q: %v", h, err)
			}
			add(total, rep)
		}
	})
}

// All histories of a few steps, each with two ticks behind it.
func TestCrashAllShortHistories(t *testing.T) {
	eachFlavor(t, func(t *testing.T, c crashsim.Config, total *crashsim.Report) {
		t.Parallel()
		letters, n := *crashLetters, 1
		for range *crashLength {
			n *= len(letters)
		}
		for i := range n {
			if quick() && i%7 > 0 || c.Words && i%3 > 0 {
				continue
			}
			var h []byte
			for k := i; len(h) < *crashLength; k /= len(letters) {
				h = append(h, letters[k%len(letters)])
			}
			steps := string(h) + "tt"
			rep, err := explore(crashsim.Options{Config: c, MaxImages: *crashImages, NestedImages: 2, Seed: *crashSeed}, steps)
			if err != nil {
				t.Fatalf("history %q: %v", steps, err)
			}
			add(total, rep)
		}
	})
}

func TestCrashRandomHistories(t *testing.T) {
	eachFlavor(t, func(t *testing.T, c crashsim.Config, total *crashsim.Report) {
		t.Parallel()
		for i := range uint64(*crashHistories) {
			seed := *crashSeed + i
			rnd := rand.New(rand.NewPCG(seed, 1))
			letters := "nnnkklNNTdeghrRcwxXvf((+__))]tttttttttsSMLW"
			if c.Words {
				letters = strings.TrimRight(letters, wide)
			}
			steps := make([]byte, *crashSteps)
			for i := range steps {
				steps[i] = letters[rnd.IntN(len(letters))]
			}
			rep, err := explore(crashsim.Options{Config: c, MaxImages: *crashImages, NestedImages: 3, Every: 0.5, Seed: seed}, string(steps))
			if err != nil {
				t.Fatalf("seed %d, history %q: %v", seed, steps, err)
			}
			add(total, rep)
		}
	})
}

// Creating and deleting in superblocks that are there writes nothing back, orders
// nothing and waits for nothing.
func TestNoDurableWorkInAllocation(t *testing.T) {
	m := crashsim.New(crashsim.Config{Size: 24 << 16})
	w, err := openWorld(m, history.New(nil))
	if err == nil {
		err = w.fill()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := w.bags["a"].s.Space()
	round := func() {
		for _, size := range []int{0, 20, 100, 1000, 10000} {
			for range 5 {
				if err := w.h.Do(func(op tidemark.Op) error {
					ref, err := s.New(op, bytesTag, make([]byte, size))
					if err != nil {
						return err
					}
					return s.Delete(op, ref)
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	round()
	before := m.Counts()
	for range 20 {
		round()
	}
	after := m.Counts()
	for _, k := range []crashsim.Kind{crashsim.WriteBack, crashsim.Order, crashsim.Store, crashsim.Fence, crashsim.Grow} {
		if after[k] != before[k] {
			t.Errorf("%d events of kind %v", after[k]-before[k], k)
		}
	}
	if after[crashsim.Wrote] == before[crashsim.Wrote] {
		t.Error("no stores were seen")
	}
}
