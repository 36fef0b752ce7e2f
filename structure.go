package tidemark

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/recovery"
)

// Structure is an open structure, as its author sees it: a name, a kind, and a
// space for payloads. Programs use the structure's own type instead.
type Structure struct {
	h      *Heap
	entry  *entry
	space  *payload.Space
	closed bool // guarded by the directory's mutex
}

// StructureInfo describes a structure of a heap.
type StructureInfo struct {
	Name  string   `json:"name"`
	Kind  string   `json:"kind"`
	ID    uint32   `json:"id"`
	Types []string `json:"types,omitempty"` // of its typed payloads
}

// MaxName is the longest name of a structure, a kind or a payload type, in bytes.
const MaxName = 1024

// directory is the heap's own structure: one payload for each structure. Making
// and dropping a structure are operations like any other.
//
// An entry's contents, little-endian, tag 1:
//
//	u32 id, string kind, string name, u16 count, then count times: u64 fingerprint, string name
//
// where a string is a u16 length and its bytes.
type directory struct {
	h       *Heap
	space   *payload.Space
	mu      sync.Mutex
	entries map[string]*entry
	next    alloc.Owner // an id never used before
}

const systemOwner alloc.Owner = 1

const entryTag = 1

type entry struct {
	StructureInfo
	types []payload.Descriptor
	ref   payload.Ref
	open  bool
}

func (d *directory) init(h *Heap) {
	d.h = h
	d.space = payload.NewSpace(h.r, h.a, systemOwner, true)
	d.entries = map[string]*entry{}
}

// load reads the directory during recovery and returns the owners it names.
func (d *directory) load() (map[alloc.Owner]bool, error) {
	owners := map[alloc.Owner]bool{systemOwner: true}
	var damaged uint64
	opt := recovery.Options{Policy: d.h.opt.Policy, Damage: d.h.damage}
	for _, it := range recovery.Iterators(context.Background(), d.h.r, d.h.a, d.space, systemOwner, "(directory)", 1, opt) {
		for it.Next() {
			e, ok := decodeEntry(it.Bytes())
			if !ok || d.entries[e.Name] != nil || owners[alloc.Owner(e.ID)] {
				if err := it.Damaged("D1: directory entry makes no sense, or is there twice"); err != nil {
					return nil, err
				}
				continue
			}
			e.ref = it.Ref()
			d.entries[e.Name] = e
			owners[alloc.Owner(e.ID)] = true
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
		damaged += it.Damage()
	}
	d.next = systemOwner
	for o := range owners {
		d.next = max(d.next, o)
	}
	for o := range d.h.a.Owners() {
		d.next = max(d.next, o)
		if damaged > 0 {
			owners[o] = true // may be one of those damaged
		}
	}
	d.next++
	return owners, nil
}

func (e *entry) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, e.ID)
	str := func(s string) { b = append(le.AppendUint16(b, uint16(len(s))), s...) }
	str(e.Kind)
	str(e.Name)
	b = le.AppendUint16(b, uint16(len(e.types)))
	for _, t := range e.types {
		b = le.AppendUint64(b, t.Fingerprint)
		str(t.Name)
	}
	return b
}

func decodeEntry(b []byte) (*entry, bool) {
	ok := true
	take := func(n int) []byte {
		if len(b) < n {
			ok = false
			return make([]byte, n)
		}
		head := b[:n]
		b = b[n:]
		return head
	}
	le := binary.LittleEndian
	str := func() string { return string(take(int(le.Uint16(take(2))))) }
	e := &entry{}
	e.ID = le.Uint32(take(4))
	e.Kind, e.Name = str(), str()
	for n := le.Uint16(take(2)); n > 0 && ok; n-- {
		t := payload.Descriptor{Fingerprint: le.Uint64(take(8)), Name: str()}
		e.types, e.Types = append(e.types, t), append(e.Types, t.Name)
	}
	ok = ok && len(b) == 0 && e.Name != "" && e.ID > uint32(systemOwner) && e.ID <= uint32(alloc.MaxOwner)
	return e, ok
}

// OpenStructure opens the structure called name, creating it where there is none.
// kind says what it is; types are those of its typed payloads, in an order that
// must not change. Errors match ErrKind, ErrSchema (naming the type), ErrLocked
// (open already), ErrReadOnly or ErrNotFound (to be created read-only), and those
// of creating a payload.
//
// The creation is an operation of its own: a crash may take it back as long as it
// would take back the operations that follow it.
func (h *Heap) OpenStructure(name, kind string, types ...payload.Descriptor) (*Structure, error) {
	if err := checkNames(name, kind, types); err != nil {
		return nil, err
	}
	if err := h.pin(); err != nil {
		return nil, err
	}
	defer h.unpin()
	d := &h.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[name]
	if e == nil {
		if h.ReadOnly() {
			return nil, fmt.Errorf("%w: %s: structure %q", errors.Join(ErrNotFound, ErrReadOnly), h.Path(), name)
		}
		e = &entry{StructureInfo: StructureInfo{Name: name, Kind: kind, ID: uint32(d.next)}, types: slices.Clone(types)}
		if d.next > alloc.MaxOwner {
			return nil, fmt.Errorf("%w: %s: structure ids are exhausted", ErrNoSpace, h.Path())
		}
		for _, t := range types {
			e.Types = append(e.Types, t.Name)
		}
		err := h.Do(func(op Op) (err error) {
			e.ref, err = d.space.New(op, entryTag, e.encode())
			return err
		})
		if err != nil {
			return nil, err
		}
		d.next++
		d.entries[name] = e
	}
	switch {
	case e.Kind != kind:
		return nil, fmt.Errorf("%w: %s: %q is a %s, not a %s", ErrKind, h.Path(), name, e.Kind, kind)
	case e.open:
		return nil, fmt.Errorf("%w: %s: structure %q is open already", ErrLocked, h.Path(), name)
	case e.ref == 0:
		return nil, fmt.Errorf("%w: %s: structure %q is being dropped", ErrLocked, h.Path(), name)
	}
	if err := sameTypes(e.types, types); err != nil {
		return nil, fmt.Errorf("%w: %s: structure %q: %w", ErrSchema, h.Path(), name, err)
	}
	e.open = true
	space := payload.NewSpace(h.r, h.a, alloc.Owner(e.ID), h.opt.Strategy != Transient, types...)
	return &Structure{h: h, entry: e, space: space}, nil
}

func checkNames(name, kind string, types []payload.Descriptor) error {
	names := []string{name, kind}
	for _, t := range types {
		names = append(names, t.Name)
	}
	for _, n := range names {
		if n == "" || len(n) > MaxName {
			return fmt.Errorf("%w: names have 1 to %d bytes; %q has %d", ErrKeyTooLarge, MaxName, n[:min(len(n), 20)], len(n))
		}
	}
	return nil
}

func sameTypes(have, want []payload.Descriptor) error {
	for i := range max(len(have), len(want)) {
		switch {
		case i >= len(have):
			return fmt.Errorf("payload type %q is new", want[i].Name)
		case i >= len(want):
			return fmt.Errorf("payload type %q is missing", have[i].Name)
		case have[i] != want[i]:
			return fmt.Errorf("payload type %d was %q with layout %x, is %q with layout %x",
				i+1, have[i].Name, have[i].Fingerprint, want[i].Name, want[i].Fingerprint)
		}
	}
	return nil
}

// Structures lists the structures of the heap, by name.
func (h *Heap) Structures() []StructureInfo {
	h.dir.mu.Lock()
	defer h.dir.mu.Unlock()
	list := make([]StructureInfo, 0, len(h.dir.entries))
	for _, e := range h.dir.entries {
		list = append(list, e.StructureInfo)
	}
	slices.SortFunc(list, func(a, b StructureInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Drop removes a structure and its data. It returns once that survives a crash;
// the space is then free, and given back to the file system where it can be. The
// structure must not be open: the error then matches ErrLocked.
//
// Crash points: until the directory entry's deletion counts, the structure is
// whole; from then on its superblocks are nobody's, and given up by recovery.
func (h *Heap) Drop(ctx context.Context, name string) error {
	if err := h.pin(); err != nil {
		return err
	}
	defer h.unpin()
	d := &h.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[name]
	switch {
	case e == nil:
		return fmt.Errorf("%w: %s: structure %q", ErrNotFound, h.Path(), name)
	case e.open:
		return fmt.Errorf("%w: %s: structure %q is open", ErrLocked, h.Path(), name)
	}
	if e.ref != 0 {
		if err := h.Do(func(op Op) error { return d.space.Delete(op, e.ref) }); err != nil {
			return err
		}
		e.ref = 0 // deleted, though not yet durably: a second Drop goes on from here
	}
	if err := h.Sync(ctx); err != nil {
		return err
	}
	// Its retired and cached blocks come back before its superblocks go.
	if err := h.Reclaim(ctx); err != nil {
		return err
	}
	delete(d.entries, name)
	h.a.ReleaseOwner(alloc.Owner(e.ID))
	h.a.Trim(trimBytes)
	return nil
}

// trimBytes is the shortest free run worth giving back to the file system.
const trimBytes = 1 << 20

// Name, Kind, Heap and Space return what the structure was opened with.
func (s *Structure) Name() string          { return s.entry.Name }
func (s *Structure) Kind() string          { return s.entry.Kind }
func (s *Structure) Heap() *Heap           { return s.h }
func (s *Structure) Space() *payload.Space { return s.space }

// Payloads returns how many blocks the structure has in use, those in caches and
// those retired included: an upper bound of its payloads, to size an index by.
func (s *Structure) Payloads() (n int64) {
	for _, c := range s.h.a.Stats().Classes {
		if uint32(c.Owner) == s.entry.ID {
			n += c.Blocks - c.Free
		}
	}
	return n
}

// Iterators returns k recovery iterators over the structure's payloads, to
// rebuild its index from before it is used. k <= 0 means Options.RecoveryWorkers.
// Use them inside [Structure.Rebuild] unless nothing can close the heap meanwhile.
func (s *Structure) Iterators(ctx context.Context, k int) []*recovery.Iterator {
	if k <= 0 {
		k = s.h.opt.RecoveryWorkers
	}
	o := recovery.Options{Policy: s.h.opt.Policy, Progress: s.h.opt.Progress, Damage: s.h.damage}
	return recovery.Iterators(ctx, s.h.r, s.h.a, s.space, alloc.Owner(s.entry.ID), s.entry.Name, k, o)
}

// Rebuild hands every payload to f, on k goroutines (k <= 0 means
// Options.RecoveryWorkers). The heap stays mapped meanwhile.
func (s *Structure) Rebuild(ctx context.Context, k int, f func(worker int, it *recovery.Iterator) error) error {
	if err := s.h.pin(); err != nil {
		return err
	}
	defer s.h.unpin()
	return recovery.Each(s.Iterators(ctx, k), f)
}

// Close lets the structure be opened again. Nothing may use it any more. Closing
// it twice does nothing.
func (s *Structure) Close() error {
	s.h.dir.mu.Lock()
	defer s.h.dir.mu.Unlock()
	if !s.closed {
		s.closed, s.entry.open = true, false
	}
	return nil
}

// owners maps owners to names, for reports.
func (d *directory) owners() map[alloc.Owner]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := map[alloc.Owner]string{systemOwner: "(directory)"}
	for e := range maps.Values(d.entries) {
		m[alloc.Owner(e.ID)] = e.Name
	}
	return m
}
