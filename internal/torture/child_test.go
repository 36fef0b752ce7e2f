//go:build unix

package torture

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// config is what a child is told, in the environment.
type config struct {
	Seed      uint64
	Round     int
	Heap      string
	Board     string
	Domain    tidemark.Domain
	Strategy  tidemark.Strategy
	Epoch     time.Duration
	Procs     int // GOMAXPROCS
	Workers   int
	Recoverer int    // workers of the recovery
	MaxSize   int    // of values
	Expect    uint64 // fingerprint of what is in the heap
	Lie       bool   // acknowledge before Sync
	Mutant    string // turned on in the child, in builds that have mutants
}

func (c *config) String() string {
	return fmt.Sprintf("round %d: %v, %v, epochs of %v, GOMAXPROCS %d, %d workers, %d recoverers, values up to %d",
		c.Round, c.Domain, c.Strategy, c.Epoch, c.Procs, c.Workers, c.Recoverer, c.MaxSize)
}

// setMutant is replaced in builds with mutants.
var setMutant = func(string) {}

const childVar = "TIDEMARK_TORTURE"

// childMain is the child. It says on standard error what went wrong; otherwise
// it says nothing.
func childMain(text string) {
	go func() { // the test holds the other end as long as it lives
		io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var cfg config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fail(err)
	}
	runtime.GOMAXPROCS(cfg.Procs)
	setMutant(cfg.Mutant)
	b, _, err := mapBoard(cfg.Board)
	if err != nil {
		fail(err)
	}
	if err := cfg.child(b); err != nil {
		fail(err)
	}
	os.Exit(0)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(1)
}

func (cfg *config) child(b *board) error {
	b.phase.Store(opening)
	start := time.Now()
	h, err := tidemark.Open(cfg.Heap, &tidemark.Options{
		Domain: cfg.Domain, Strategy: cfg.Strategy, EpochLength: cfg.Epoch, RecoveryWorkers: cfg.Recoverer,
	})
	if err != nil {
		return err
	}
	maps, err := openMaps(h)
	if err != nil {
		return err
	}
	b.recovery.Store(int64(time.Since(start)))
	b.payloads.Store(h.Metrics().Recovery.Live)
	b.phase.Store(checking)
	s, err := collect(maps)
	if err != nil {
		return fmt.Errorf("after recovery: %w", err)
	}
	if s.sum() != cfg.Expect {
		return errors.New("T6: after recovery the heap holds something else than when opened read-only")
	}
	if !s.shared[0].here {
		if err := makeShared(h, maps); err != nil {
			return err
		}
	}
	b.phase.Store(loading)

	l := load{h: h, maps: maps, b: b}
	var workers, syncer sync.WaitGroup
	for w := range cfg.Workers {
		x := &worker{load: &l, w: w, state: &s.workers[w], stream: newStream(cfg.Seed, cfg.Round, w, cfg.MaxSize)}
		workers.Go(func() {
			for b.stop.Load() == 0 {
				if err := x.step(); err != nil {
					fail(fmt.Errorf("T5: worker %d, operation %d, kind %d: %w", w, x.stream.n, x.last.kind, err))
				}
			}
		})
	}
	var stop atomic.Bool
	syncer.Go(func() {
		for i := 0; !stop.Load(); i++ {
			var done [maxWorkers]uint64
			for w := range done {
				done[w] = b.workers[w].done.Load()
			}
			if !cfg.Lie {
				if err := h.Sync(context.Background()); err != nil {
					fail(fmt.Errorf("sync: %w", err))
				}
			}
			for w := range done {
				b.workers[w].acked.Store(done[w])
			}
			time.Sleep(time.Duration(i%5) * time.Millisecond)
		}
	})
	workers.Wait()
	stop.Store(true)
	syncer.Wait()
	b.phase.Store(closing)
	if err := h.Close(); err != nil {
		return err
	}
	for w := range cfg.Workers {
		b.workers[w].acked.Store(b.workers[w].done.Load())
	}
	return nil
}

// makeShared puts all shared keys there as one operation.
func makeShared(h *tidemark.Heap, maps [2]*hashmap.Map) error {
	return h.Do(func(op tidemark.Op) error {
		for p := range places {
			v := shared{}
			if p < 2*accounts {
				v.balance = firstSum
			}
			if err := maps[placeMap(p)].In(op).Put(placeKey(p), v.append(nil)); err != nil {
				return err
			}
		}
		return nil
	})
}

// load is what the workers have in common.
type load struct {
	h    *tidemark.Heap
	maps [2]*hashmap.Map
	b    *board
}

type worker struct {
	*load
	w      int
	state  *state
	stream *stream
	last   operation
	a, c   []byte // buffers
}

var (
	errUndo = errors.New("undo")
	wrong   = []byte("nobody has put this")
)

// step carries out the stream's next operation, and compares its result with the
// model's.
func (x *worker) step() error {
	o := x.stream.next()
	x.last = o
	bw := &x.b.workers[x.w]
	var seen [maxWorkers]opID
	if o.kind == note {
		for i := range seen {
			if n := x.b.workers[i].done.Load(); n > 0 {
				seen[i] = makeID(x.stream.round, i, n)
			}
		}
	}
	bw.begun.Store(o.id.n())
	m, key := x.maps[o.at.m], o.at.key(x.w)
	was := x.state.own[o.at.m][o.at.k]
	var old []byte
	if was.here {
		x.a = was.value(x.a[:0], x.w, o.at)
		old = x.a[:len(x.a):len(x.a)]
		if old == nil {
			old = []byte{}
		}
	}
	x.c = makeCell(o.id, o.size).value(x.c[:0], x.w, o.at)
	val := x.c
	expect := old
	if o.flag {
		expect = wrong
	}
	want := x.state.apply(&o)
	got, err := want, error(nil)
	switch o.kind {
	case put:
		err = m.Put(key, val)
	case putIfAbsent:
		got, err = m.PutIfAbsent(key, val)
	case remove:
		got, err = m.Delete(key)
	case update:
		err = m.Update(key, func(found []byte, ok bool) ([]byte, bool) {
			got = want && ok == was.here && bytes.Equal(found, old)
			return val, !o.flag
		})
	case cas:
		got, err = m.CompareAndSwap(key, expect, val)
	case cad:
		got, err = m.CompareAndDelete(key, expect)
	case get:
		var found []byte
		if found, err = m.Get(key); errors.Is(err, tidemark.ErrNotFound) {
			found, err = nil, nil
		}
		got = (found != nil) == was.here && bytes.Equal(found, old)
	case note:
		v := binary.LittleEndian.AppendUint64(nil, uint64(o.id))
		for _, id := range seen {
			v = binary.LittleEndian.AppendUint64(v, uint64(id))
		}
		err = x.maps[x.w%2].Put(noteKey(x.w), v)
	case count:
		p := o.places[0]
		err = x.maps[placeMap(p)].Update(placeKey(p), x.stamp(&o, 0))
	case sit:
		_, err = x.sit(x.maps[o.seat%2], &o)
	case do:
		err = x.h.Do(func(op tidemark.Op) error { return x.do(op, &o) })
		if o.flag && errors.Is(err, errUndo) {
			err = nil
		}
	}
	if err == nil && got != want {
		err = fmt.Errorf("key %q: returned %v; want %v", key, got, want)
	}
	if err == nil {
		bw.done.Store(o.id.n())
	}
	return err
}

// do carries out o within an operation over both maps.
func (x *worker) do(op tidemark.Op, o *operation) error {
	for _, c := range o.change {
		m, key := x.maps[c.at.m].In(op), c.at.key(x.w)
		var err error
		if c.size < 0 {
			_, err = m.Delete(key)
		} else {
			x.c = makeCell(o.id, c.size).value(x.c[:0], x.w, c.at)
			err = m.Put(key, x.c)
		}
		if err != nil {
			return err
		}
	}
	if o.seat >= 0 {
		if _, err := x.sit(x.maps[o.seat%2].In(op), o); err != nil {
			return err
		}
	}
	amount := -o.amount
	for _, p := range o.places {
		if err := x.maps[placeMap(p)].In(op).Update(placeKey(p), x.stamp(o, amount)); err != nil {
			return err
		}
		amount = -amount
	}
	if o.flag {
		return errUndo
	}
	return nil
}

// sit puts or deletes a seat.
func (x *worker) sit(m interface {
	PutIfAbsent(key, val []byte) (bool, error)
	Delete(key []byte) (bool, error)
}, o *operation) (bool, error) {
	if o.kind == sit && o.flag || o.kind == do && o.size%2 == 0 {
		return m.Delete(seatKey(o.seat))
	}
	return m.PutIfAbsent(seatKey(o.seat), binary.LittleEndian.AppendUint64(nil, uint64(o.id)))
}

// stamp changes a shared value: adds to its balance and leaves the worker's mark.
func (x *worker) stamp(o *operation, amount int64) func([]byte, bool) ([]byte, bool) {
	return func(old []byte, ok bool) ([]byte, bool) {
		v, _ := parseShared(old)
		v.last, v.marks[x.w] = o.id, o.id
		v.balance += amount
		return v.append(nil), true
	}
}
