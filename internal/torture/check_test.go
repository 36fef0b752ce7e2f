//go:build unix

package torture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// snapshot is all that is in a heap.
type snapshot struct {
	workers [maxWorkers]state
	seen    [maxWorkers][maxWorkers]opID // what each worker's note says it saw done
	shared  [places]shared
	seats   [seats]opID // who put what is there
	entries int
}

// sum is a fingerprint of the snapshot.
func (s *snapshot) sum() uint64 {
	xs := []uint64{uint64(s.entries)}
	for w := range s.workers {
		xs = append(xs, s.workers[w].sum)
	}
	for _, v := range s.shared {
		xs = append(xs, uint64(v.last), uint64(v.balance))
	}
	for _, id := range s.seats {
		xs = append(xs, uint64(id))
	}
	return mix(xs...)
}

var mapNames = [2]string{"a", "b"}

// openMaps opens both maps; of a read-only heap, nil for one that is not there.
func openMaps(h *tidemark.Heap) (maps [2]*hashmap.Map, err error) {
	for i, name := range mapNames {
		maps[i], err = hashmap.Open(h, name, nil)
		if errors.Is(err, tidemark.ErrNotFound) && h.ReadOnly() {
			maps[i], err = nil, nil
		}
		if err != nil {
			return maps, fmt.Errorf("map %q: %w", name, err)
		}
	}
	return maps, nil
}

// collect reads both maps and checks what needs no model: T3, and that each
// value is one that an operation could have put there.
func collect(maps [2]*hashmap.Map) (*snapshot, error) {
	s := &snapshot{}
	var buf []byte
	for m, hm := range maps {
		if hm == nil {
			continue
		}
		n := 0
		for key, val := range hm.All() {
			n++
			bad := func() (*snapshot, error) {
				return s, fmt.Errorf("map %q, key %q: %d bytes that nobody put there: %.40x", mapNames[m], key, len(val), val)
			}
			switch {
			case len(key) >= 4 && key[0] == 'o':
				w, at := int(key[1]), slot{int(key[2]), int(key[3])}
				if w >= maxWorkers || at.m != m || at.k >= ownKeys || !bytes.Equal(key, at.key(w)) {
					return bad()
				}
				var id [8]byte
				copy(id[:], val)
				c := makeCell(opID(binary.LittleEndian.Uint64(id[:])), len(val))
				buf = c.value(buf[:0], w, at)
				if !bytes.Equal(val, buf) || len(val) >= 8 && c.id.worker() != w {
					return bad()
				}
				s.workers[w].set(at, c)
			case len(key) == 2 && key[0] == 'n':
				w := int(key[1])
				if w >= maxWorkers || m != w%2 || len(val) != 8+8*maxWorkers {
					return bad()
				}
				id := opID(binary.LittleEndian.Uint64(val))
				if id.worker() != w {
					return bad()
				}
				s.workers[w].setNote(id)
				for i := range maxWorkers {
					s.seen[w][i] = opID(binary.LittleEndian.Uint64(val[8+8*i:]))
				}
			case len(key) == 2 && key[0] == 't':
				if key[1] >= seats || m != int(key[1]%2) || len(val) != 8 {
					return bad()
				}
				s.seats[key[1]] = opID(binary.LittleEndian.Uint64(val))
			case len(key) == 2 && key[0] == 's':
				place := int(key[1])
				if place >= places || placeMap(place) != m {
					return bad()
				}
				v, ok := parseShared(val)
				if !ok || !bytes.Equal(val, v.append(nil)) || v.last.worker() >= maxWorkers || v.last != 0 && v.marks[v.last.worker()] != v.last {
					return bad()
				}
				s.shared[place] = v
				for w, id := range v.marks {
					s.workers[w].mark(place, id)
				}
			default:
				return bad()
			}
		}
		if n != hm.Len() {
			return s, fmt.Errorf("map %q has %d entries, and a length of %d", mapNames[m], n, hm.Len())
		}
		s.entries += n
	}
	return s, s.checkShared()
}

func (s *snapshot) checkShared() error {
	sum := int64(0)
	for p, v := range s.shared {
		if v.here != s.shared[0].here {
			return fmt.Errorf("T3: the operation that made all shared keys is there in part (place %d)", p)
		}
		if p < 2*accounts {
			sum += v.balance
		}
		if p >= 2*accounts && p < 2*accounts+2*pairs && p%2 == 1 && v != s.shared[p-1] {
			return fmt.Errorf("T3: pair %d is not equal: %v and %v", (p-2*accounts)/2, s.shared[p-1], v)
		}
	}
	if want := int64(2 * accounts * firstSum); s.shared[0].here && sum != want {
		return fmt.Errorf("T3: the accounts hold %d; want %d", sum, want)
	}
	return nil
}

// inspect verifies the heap in dir and reads it, without changing it. A heap
// that is not there holds nothing.
func inspect(dir string) (*snapshot, error) {
	rep, err := tidemark.Verify(context.Background(), dir, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return &snapshot{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("T4: verify: %w", err)
	}
	if len(rep.Problems) > 0 {
		return nil, fmt.Errorf("T4: verify: %d problems, the first: %w", len(rep.Problems), rep.Problems[0])
	}
	h, err := tidemark.OpenReadOnly(dir, nil)
	if err != nil {
		return nil, fmt.Errorf("open read-only: %w", err)
	}
	defer h.Close()
	maps, err := openMaps(h)
	if err != nil {
		return nil, err
	}
	return collect(maps)
}

// loss says what a kill took back.
type loss struct {
	done, acked, lost uint64
}

// check compares what was found after a round with what was there before it and
// what the board says was done.
func check(cfg *config, b *board, before, after *snapshot) (loss, error) {
	var l loss
	var kept [maxWorkers]uint64
	for w := range maxWorkers {
		bw := &b.workers[w]
		begun, done, acked := bw.begun.Load(), bw.done.Load(), bw.acked.Load()
		n, ok := before.workers[w].match(cfg, w, begun, &after.workers[w])
		if !ok || n < acked {
			found := "no number of operations"
			if ok {
				found = fmt.Sprint(n, " operations")
			}
			return l, fmt.Errorf("T1: worker %d began %d operations, %d had returned, %d were covered by Sync; the heap is as %s left it%s",
				w, begun, done, acked, found, before.workers[w].explain(cfg, w, acked, &after.workers[w]))
		}
		kept[w] = n
		l.done += done
		l.acked += acked
		l.lost += done - min(n, done)
	}
	for w := range maxWorkers {
		for i, id := range after.seen[w] {
			if id.round() == cfg.Round && after.workers[w].note.round() == cfg.Round && id.n() > kept[i] {
				return l, fmt.Errorf("T2: operation %d of worker %d is there, but of worker %d only %d operations, though %d had returned before",
					after.workers[w].note.n(), w, i, kept[i], id.n())
			}
		}
	}
	for i, id := range after.seats {
		switch {
		case id == 0 || id == before.seats[i]:
		case id.round() != cfg.Round || id.worker() >= maxWorkers || id.n() > kept[id.worker()]:
			return l, fmt.Errorf("T1: seat %d is of operation %d of worker %d in round %d, which is not there otherwise", i, id.n(), id.worker(), id.round())
		}
	}
	switch {
	case !after.shared[0].here && before.shared[0].here:
		return l, errors.New("the shared keys are gone")
	case !after.shared[0].here && after.entries > 0:
		return l, errors.New("T2: the first operation is not there, but later ones are")
	}
	return l, nil
}

// match returns the greatest number of operations, up to most, that leads from
// st to want.
func (st *state) match(cfg *config, worker int, most uint64, want *state) (n uint64, ok bool) {
	now := *st
	s := newStream(cfg.Seed, cfg.Round, worker, cfg.MaxSize)
	for i := uint64(0); ; i++ {
		if now.sum == want.sum {
			n, ok = i, true
		}
		if i == most {
			return n, ok
		}
		o := s.next()
		now.apply(&o)
	}
}

// explain lists where want differs from the state after n operations.
func (st *state) explain(cfg *config, worker int, n uint64, want *state) string {
	now := *st
	s := newStream(cfg.Seed, cfg.Round, worker, cfg.MaxSize)
	for range n {
		o := s.next()
		now.apply(&o)
	}
	text, shown := fmt.Sprintf("; compared with the state after %d:", n), 0
	line := func(format string, args ...any) {
		if shown++; shown <= 10 {
			text += "\n\t" + fmt.Sprintf(format, args...)
		}
	}
	id := func(id opID) string {
		if id == 0 {
			return "none"
		}
		return fmt.Sprintf("operation %d of round %d", id.n(), id.round())
	}
	for m := range now.own {
		for k := range now.own[m] {
			if a, b := now.own[m][k], want.own[m][k]; a != b {
				line("map %q, own key %d: found %d bytes by %s (there: %v); want %d by %s (there: %v)",
					mapNames[m], k, b.size, id(b.id), b.here, a.size, id(a.id), a.here)
			}
		}
	}
	if now.note != want.note {
		line("note: found %s; want %s", id(want.note), id(now.note))
	}
	for p := range now.marks {
		if now.marks[p] != want.marks[p] {
			line("place %d: found %s; want %s", p, id(want.marks[p]), id(now.marks[p]))
		}
	}
	return fmt.Sprintf("%s\n\t%d differences in all", text, shown)
}
