package hashmap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/internal/mutant"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/recovery"
)

// Kind is the kind of a structure that is a hash map.
const Kind = "hashmap"

// Limits, in bytes. Longer ones give ErrKeyTooLarge and ErrValueTooLarge.
const (
	MaxKey   = 1 << 20
	MaxValue = payload.MaxSize - MaxKey - keyHeader
)

// Options configure a map. The zero value, and nil, work.
type Options struct {
	// Workers is how many goroutines rebuild the index; 0 means the heap's
	// RecoveryWorkers.
	Workers int
}

// Map is a hash map of byte slices. Its methods may be called by any goroutine.
// Slices given to it may be changed as soon as a call returns; slices it returns
// are the caller's own. Keys may be empty, and so may values; nil is the same as
// empty.
//
// Each method is one operation. Changes survive a crash once the heap's clock has
// ticked twice more, or once a Sync called after them has returned; until then a
// crash may take them back, but no older ones in their stead. On a closed heap
// every method returns ErrClosed.
type Map struct {
	h       *tidemark.Heap
	st      *tidemark.Structure
	space   *payload.Space
	seed    maphash.Seed
	table   atomic.Pointer[table]
	growing atomic.Bool
	closed  atomic.Bool
	counts  [16]counter
}

// counter is a part of Len, on a line of its own.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

// Open opens the map called name, creating it where there is none, and rebuilds
// its index. Errors are those of Heap.OpenStructure, and ErrCorrupt for damaged
// entries unless the heap's Policy is Salvage.
func Open(h *tidemark.Heap, name string, opt *Options) (*Map, error) {
	return OpenContext(context.Background(), h, name, opt)
}

// OpenContext is Open with a rebuild that ends when ctx does.
func OpenContext(ctx context.Context, h *tidemark.Heap, name string, opt *Options) (*Map, error) {
	return open(ctx, h, name, opt)
}

func open(ctx context.Context, h *tidemark.Heap, name string, opt *Options, types ...payload.Descriptor) (*Map, error) {
	st, err := h.OpenStructure(name, Kind, types...)
	if err != nil {
		return nil, err
	}
	return FromStructure(ctx, st, opt)
}

// FromStructure returns the map that an open structure of this kind is, for tools
// that open structures without knowing their types; see Heap.Inspect. The map
// closes the structure.
func FromStructure(ctx context.Context, st *tidemark.Structure, opt *Options) (*Map, error) {
	if opt == nil {
		opt = &Options{}
	}
	if st.Kind() != Kind {
		return nil, fmt.Errorf("%w: %q is a %s", tidemark.ErrKind, st.Name(), st.Kind())
	}
	h := st.Heap()
	m := &Map{h: h, st: st, space: st.Space(), seed: maphash.MakeSeed()}
	m.table.Store(newTable(tableSize(st.Payloads()), newOverflow()))
	done := false
	defer func() {
		if !done { // a panic of a callback included
			st.Close()
		}
	}()
	workers := opt.Workers
	if workers <= 0 {
		workers = h.Options().RecoveryWorkers
	}
	batches := make([]rebuild, workers)
	err := st.Rebuild(ctx, workers, func(worker int, it *recovery.Iterator) error { return batches[worker].add(m, worker, it) })
	if err != nil {
		return nil, err
	}
	err = h.Do(func(tidemark.Op) error { // which keeps the heap mapped
		for i := range batches {
			if err := batches[i].flush(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	done = true
	return m, nil
}

// rebuild is a worker's batch of surviving entries on their way into the index.
// A batch at a time, since the buckets of a batch can come from memory together.
type rebuild struct {
	m      *Map
	worker int
	it     *recovery.Iterator
	n      int
	hashes [rebuildBatch]uint64
	refs   [rebuildBatch]payload.Ref

	_ [64]byte // apart from the next worker's
}

const rebuildBatch = 64

func (r *rebuild) add(m *Map, worker int, it *recovery.Iterator) error {
	r.m, r.worker, r.it = m, worker, it
	key, _, ok := split(it.Bytes())
	if !ok || it.Tag() != entryTag {
		return it.Damaged("H1: contents are not a key and a value")
	}
	r.hashes[r.n], r.refs[r.n] = m.hash(key), it.Ref()
	if r.n++; r.n == rebuildBatch {
		return r.flush()
	}
	return nil
}

// flush indexes the batch.
func (r *rebuild) flush() error {
	m, n := r.m, r.n
	if r.n = 0; n == 0 {
		return nil
	}
	t, added := m.table.Load(), 0
	for _, h := range r.hashes[:n] {
		t.buckets[h&t.mask].ctl.Load() // asks for the line
	}
	for i, h := range r.hashes[:n] {
		w := makeWord(h, r.refs[i])
		key, _ := m.entry(w)
		t, b, ctl := m.lock(h, true)
		if m.find(t, b, ctl, h, key) != nil {
			b.unlock(ctl)
			if err := r.it.DamagedAt(r.refs[i], "H1: two live entries of one key"); err != nil {
				return err
			}
			continue
		}
		ctl, _ = t.add(b, ctl, w)
		b.unlock(ctl)
		added++
	}
	m.count(r.worker, added)
	return nil
}

func (m *Map) count(stripe, d int) { m.counts[stripe%len(m.counts)].n.Add(int64(d)) }

func (m *Map) len() (n int64) {
	for i := range m.counts {
		n += m.counts[i].n.Load()
	}
	return n
}

// Len returns the number of entries; while others change the map, an estimate.
func (m *Map) Len() int { return int(max(m.len(), 0)) }

// Close closes the map; the heap stays open. Methods then return ErrClosed; those
// that run meanwhile are the caller's to wait for.
func (m *Map) Close() error {
	m.closed.Store(true)
	return m.st.Close()
}

// begin starts an operation on the map, if it is open.
func (m *Map) begin() (tidemark.Op, error) {
	op := m.h.Begin()
	_, err := m.slot(op)
	if err != nil {
		op.End()
	}
	return op, err
}

// slot returns the slot of an operation, if that runs and the map is open.
func (m *Map) slot(op tidemark.Op) (*epoch.Slot, error) {
	if m.closed.Load() {
		return nil, fmt.Errorf("%w: map %q", tidemark.ErrClosed, m.Name())
	}
	return op.Slot()
}

// Name returns the map's name.
func (m *Map) Name() string { return m.st.Name() }

// Get returns a copy of the value of key, or ErrNotFound.
func (m *Map) Get(key []byte) ([]byte, error) { return m.AppendGet(nil, key) }

// AppendGet appends the value of key to dst and returns the result, or dst and
// ErrNotFound. It allocates nothing if dst has room. A value that is there is
// never returned as nil.
func (m *Map) AppendGet(dst, key []byte) ([]byte, error) {
	op, err := m.begin()
	if err != nil {
		return dst, err
	}
	dst, err = m.get(op, dst, key, false)
	op.End()
	return dst, err
}

// Has reports whether key is there.
func (m *Map) Has(key []byte) (bool, error) {
	op, err := m.begin()
	if err != nil {
		return false, err
	}
	defer op.End()
	return m.has(op, key, false)
}

func (m *Map) has(op tidemark.Op, key []byte, strict bool) (bool, error) {
	slot, err := m.slot(op)
	if err != nil {
		return false, err
	}
	h := m.hash(key)
	t, b, ctl := m.lock(h, false)
	defer b.unlock(ctl)
	w := m.find(t, b, ctl, h, key)
	if strict && ctl>>stampShift > slot.Epoch() {
		return false, tidemark.ErrOldSeesNew
	}
	return w != nil && *w&dead == 0, nil
}

// get copies a value. strict has an operation older than the bucket's stamp
// refused; a Get of its own needs no place in the order of epochs.
func (m *Map) get(op tidemark.Op, dst, key []byte, strict bool) ([]byte, error) {
	h := m.hash(key)
	t, b, ctl := m.lock(h, false)
	if strict && ctl>>stampShift > op.Epoch() {
		b.unlock(ctl)
		return dst, tidemark.ErrOldSeesNew
	}
	w := m.find(t, b, ctl, h, key)
	if w == nil || *w&dead != 0 {
		b.unlock(ctl)
		return dst, tidemark.ErrNotFound
	}
	_, val := m.entry(*w)
	if dst == nil {
		dst = make([]byte, 0, len(val)) // never nil
	}
	dst = append(dst, val...)
	b.unlock(ctl)
	return dst, nil
}

// A request is one change of one key.
type request struct {
	key, val []byte
	kind     kind
	old      []byte // of a compareAndSwap
	present  bool   // whether compareAndSwap expects the key to be there

	large payload.Ref // the new payload, if it was made beforehand
}

type kind uint8

const (
	put kind = iota
	putIfAbsent
	remove
	compareAndSwap
	compareAndDelete
)

// largeValue is the size from which a value is copied before the bucket is locked.
const largeValue = 64 << 10

// do carries out a request as an operation of its own. It reports whether it had
// its effect; for put, whether a value was replaced.
func (m *Map) do(r request) (bool, error) {
	if err := r.check(); err != nil {
		return false, err
	}
	ok, err := m.tryDo(&r)
	if errors.Is(err, tidemark.ErrNoSpace) {
		// Space of what was deleted lately comes back with the clock.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if m.h.Reclaim(ctx) == nil {
			ok, err = m.tryDo(&r)
		}
	}
	return ok, err
}

func (m *Map) tryDo(r *request) (ok bool, err error) {
	if len(r.val) >= largeValue {
		err = m.h.Do(func(op tidemark.Op) (err error) {
			if r.large, err = m.create(op, r); err == nil {
				ok, err = m.in(op, r)
			}
			return err
		})
		return ok, err
	}
	h := m.hash(r.key)
	for n := 0; ; n++ {
		op, err := m.begin() // first: the lock may move entries, which needs the heap mapped
		if err != nil {
			return false, err
		}
		t, b, ctl := m.lock(h, true)
		if ctl>>stampShift > op.Epoch() {
			op.End()
			// Under the lock, so in an epoch that is new enough.
			if op, err = m.begin(); err != nil {
				b.unlock(ctl)
				return false, err
			}
		}
		w := m.find(t, b, ctl, h, r.key)
		if w != nil && *w&pending != 0 {
			op.End()
			b.unlock(ctl)
			if n > maxWaits {
				return false, fmt.Errorf("%w: %s: map %q", tidemark.ErrConflict, m.h.Path(), m.Name())
			}
			pause(n)
			continue
		}
		c := change{m: m, op: op, t: t, b: b, ctl: ctl, h: h, w: w}
		ok, err = c.apply(r, 0)
		if err != nil {
			op.Abort()
		} else {
			op.End()
		}
		b.unlock(c.ctl)
		m.after(&c)
		return ok, err
	}
}

// maxWaits bounds the wait for another operation's entry: some seconds.
const maxWaits = 5000

// in carries out a request within an operation.
func (m *Map) in(op tidemark.Op, r *request) (bool, error) {
	slot, err := m.slot(op)
	if err != nil {
		return false, err
	}
	h := m.hash(r.key)
	for n := 0; ; n++ {
		t, b, ctl := m.lock(h, true)
		if ctl>>stampShift > slot.Epoch() && !mutant.Is(mutant.NoStamp) {
			b.unlock(ctl)
			return false, tidemark.ErrOldSeesNew
		}
		w := m.find(t, b, ctl, h, r.key)
		if w != nil && *w&pending != 0 && !m.own(slot, *w) {
			b.unlock(ctl)
			if n > 200 {
				return false, tidemark.ErrConflict
			}
			pause(n)
			continue
		}
		c := change{m: m, op: op, t: t, b: b, ctl: ctl, h: h, w: w}
		ok, err := c.apply(r, pending)
		b.unlock(c.ctl)
		m.after(&c)
		return ok, err
	}
}

// after does what a change leaves to be done without its lock.
func (m *Map) after(c *change) {
	if c.full {
		m.grow(c.t)
	}
	if c.added {
		m.assist()
	}
}

func (r *request) check() error {
	switch {
	case len(r.key) > MaxKey:
		return fmt.Errorf("%w: %d bytes, at most %d", tidemark.ErrKeyTooLarge, len(r.key), MaxKey)
	case uint64(len(r.val)) > MaxValue:
		return fmt.Errorf("%w: %d bytes, at most %d", tidemark.ErrValueTooLarge, len(r.val), uint64(MaxValue))
	}
	return nil
}

func (m *Map) create(op tidemark.Op, r *request) (payload.Ref, error) {
	d, err := m.space.Draft(op, entryTag, keyHeader+len(r.key)+len(r.val))
	if err != nil {
		return 0, err
	}
	b := d.Bytes
	binary.LittleEndian.PutUint32(b, uint32(len(r.key)))
	copy(b[keyHeader:], r.key)
	copy(b[keyHeader+len(r.key):], r.val)
	return d.Publish(), nil
}
