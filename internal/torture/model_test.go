//go:build unix

package torture

import (
	"encoding/binary"
	"math/rand/v2"
)

const (
	maxWorkers = 8
	ownKeys    = 150 // of a worker, in each map

	accounts = 8 // in each map
	pairs    = 8
	counters = 4
	places   = 2*accounts + 2*pairs + counters
	firstSum = 1000 // on each account

	// Seats are shared keys that all workers put and delete. Nobody knows what he
	// finds there, so the model says nothing of them.
	seats = 4
)

// An opID is unique over all rounds: round<<44 | worker<<40 | number in the round.
type opID uint64

func makeID(round, worker int, n uint64) opID {
	return opID(uint64(round)<<44 | uint64(worker)<<40 | n)
}

func (id opID) round() int  { return int(id >> 44) }
func (id opID) worker() int { return int(id >> 40 & 15) }
func (id opID) n() uint64   { return uint64(id & (1<<40 - 1)) }

// A cell is what one key of a worker's own holds: nothing, or a value made from
// id and size. Of an id only what a short value shows is kept.
type cell struct {
	id   opID
	size int32
	here bool
}

func makeCell(id opID, size int) cell {
	if size < 8 {
		id &= 1<<(8*size) - 1
	}
	return cell{id, int32(size), true}
}

// slot names one of a worker's own keys.
type slot struct{ m, k int }

func (s slot) key(worker int) []byte {
	b := []byte{'o', byte(worker), byte(s.m), byte(s.k)}
	return append(b, make([]byte, s.k%40)...)
}

// value appends the value of c to dst.
func (c cell) value(dst []byte, worker int, s slot) []byte {
	const step = 0x9e3779b97f4a7c15
	x, n := uint64(c.id), int(c.size)
	for i := 0; i < n; i += 8 {
		dst = binary.LittleEndian.AppendUint64(dst, x)
		x = x*step + uint64(worker<<20|s.m<<16|s.k) + step
	}
	return dst[:len(dst)-(-n&7)]
}

func mix(xs ...uint64) uint64 {
	h := uint64(0x243f6a8885a308d3)
	for _, x := range xs {
		h = (h ^ x) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return h
}

// state is the model of what one worker has done. sum is a fingerprint, kept up
// to date with each change, so that states can be compared at every step.
type state struct {
	own   [2][ownKeys]cell
	note  opID
	marks [places]opID // the worker's last operation in each shared place
	sum   uint64
}

func (st *state) set(s slot, c cell) {
	p := &st.own[s.m][s.k]
	st.sum ^= p.hash(s) ^ c.hash(s)
	*p = c
}

func (c cell) hash(s slot) uint64 {
	if !c.here {
		return 0
	}
	return mix(1, uint64(s.m), uint64(s.k), uint64(c.size), uint64(c.id))
}

func (st *state) setNote(id opID) {
	st.sum ^= markHash(places, st.note) ^ markHash(places, id)
	st.note = id
}

func (st *state) mark(place int, id opID) {
	st.sum ^= markHash(place, st.marks[place]) ^ markHash(place, id)
	st.marks[place] = id
}

func markHash(place int, id opID) uint64 {
	if id == 0 {
		return 0
	}
	return mix(2, uint64(place), uint64(id))
}

type kind int

const (
	put kind = iota
	putIfAbsent
	remove
	update
	cas
	cad
	get
	note  // puts what the worker has seen of the others
	count // Update of one shared key
	sit   // puts or deletes a seat
	do    // one operation over both maps
)

// odds of each kind, in percent.
var odds = [...]int{put: 20, putIfAbsent: 8, remove: 12, update: 10, cas: 8, cad: 5, get: 4, note: 6, count: 4, sit: 8, do: 15}

// An operation, as the stream says it. Its effect depends on the state.
type operation struct {
	id     opID
	kind   kind
	at     slot
	size   int
	flag   bool     // update: remove; cas and cad: expect what is not there; do: fail at the end; sit: delete
	change []change // do: of own keys
	places []int    // do and count: of shared keys
	seat   int      // do and sit: a seat; -1 for none
	amount int64    // moved from the first place to the second
}

type change struct {
	at   slot
	size int // -1: remove
}

// A stream makes the operations of one worker in one round.
type stream struct {
	rng           *rand.Rand
	round, worker int
	n             uint64
	maxSize       int
}

func newStream(seed uint64, round, worker, maxSize int) *stream {
	return &stream{rand.New(rand.NewPCG(seed+uint64(round), uint64(worker))), round, worker, 0, maxSize}
}

// size favours small values, and goes past the size from which a map copies a
// value before it takes the lock.
func (s *stream) size() int {
	switch s.rng.IntN(50) {
	case 0, 1:
		return 0
	case 2:
		return s.maxSize
	}
	return s.rng.IntN(1 + s.rng.IntN(1+s.rng.IntN(1+s.maxSize)))
}

func (s *stream) slot() slot { return slot{s.rng.IntN(2), s.rng.IntN(ownKeys)} }

func (s *stream) next() operation {
	s.n++
	o := operation{id: makeID(s.round, s.worker, s.n), at: s.slot(), size: s.size(), flag: s.rng.IntN(5) == 0}
	for roll := s.rng.IntN(100); roll >= odds[o.kind]; o.kind++ {
		roll -= odds[o.kind]
	}
	o.seat = -1
	switch o.kind {
	case sit:
		o.seat = s.rng.IntN(seats)
	case count:
		o.places = []int{2*accounts + 2*pairs + s.rng.IntN(counters)}
	case do:
		n := s.rng.IntN(4)
		if s.rng.IntN(10) == 0 { // long enough for the clock to tick meanwhile
			n = 30
		}
		for range n {
			c := change{s.slot(), s.size()}
			if s.rng.IntN(4) == 0 {
				c.size = -1
			}
			o.change = append(o.change, c)
		}
		switch s.rng.IntN(4) {
		case 0:
			from, to := s.rng.IntN(accounts), accounts+s.rng.IntN(accounts)
			if s.rng.IntN(2) == 0 {
				from, to = to, from
			}
			o.places, o.amount = []int{from, to}, s.rng.Int64N(100)
		case 1:
			p := 2*accounts + 2*s.rng.IntN(pairs)
			o.places = []int{p, p + 1}
		case 2:
			o.seat = s.rng.IntN(seats)
		}
	}
	return o
}

// apply has the operation's effect on the model, and returns the result it
// should have: whether it changed anything, where it says so.
func (st *state) apply(o *operation) bool {
	c := &st.own[o.at.m][o.at.k]
	was := c.here
	switch o.kind {
	case put:
		st.set(o.at, makeCell(o.id, o.size))
	case putIfAbsent:
		if !was {
			st.set(o.at, makeCell(o.id, o.size))
		}
		return !was
	case remove:
		st.set(o.at, cell{})
		return was
	case update:
		if o.flag {
			st.set(o.at, cell{})
		} else {
			st.set(o.at, makeCell(o.id, o.size))
		}
	case cas:
		if !o.flag {
			st.set(o.at, makeCell(o.id, o.size))
		}
		return !o.flag
	case cad:
		if !o.flag {
			st.set(o.at, cell{})
		}
		return !o.flag
	case note:
		st.setNote(o.id)
	case count, do:
		if o.kind == do && o.flag {
			return false
		}
		for _, x := range o.change {
			if x.size < 0 {
				st.set(x.at, cell{})
			} else {
				st.set(x.at, makeCell(o.id, x.size))
			}
		}
		for _, p := range o.places {
			st.mark(p, o.id)
		}
	}
	return true
}

// shared is the value of a shared key.
//
//	u64 last writer's operation, i64 balance, 8 times u64: each worker's last
//	operation here, then filler whose length and bytes follow from the first word
type shared struct {
	here    bool
	last    opID
	balance int64
	marks   [maxWorkers]opID
}

const maxFiller = 1500

func placeMap(place int) int {
	switch {
	case place < 2*accounts:
		return place / accounts
	default:
		return place % 2
	}
}

func placeKey(place int) []byte { return []byte{'s', byte(place)} }

func seatKey(seat int) []byte { return []byte{'t', byte(seat)} }

func noteKey(worker int) []byte { return []byte{'n', byte(worker)} }

func (v *shared) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(v.last))
	dst = le.AppendUint64(dst, uint64(v.balance))
	for _, id := range v.marks {
		dst = le.AppendUint64(dst, uint64(id))
	}
	for range mix(uint64(v.last)) % maxFiller {
		dst = append(dst, byte(v.last))
	}
	return dst
}

func parseShared(b []byte) (v shared, ok bool) {
	const fixed = 16 + 8*maxWorkers
	if len(b) < fixed {
		return v, false
	}
	le := binary.LittleEndian
	v.here, v.last, v.balance = true, opID(le.Uint64(b)), int64(le.Uint64(b[8:]))
	for i := range v.marks {
		v.marks[i] = opID(le.Uint64(b[16+8*i:]))
	}
	return v, true
}
