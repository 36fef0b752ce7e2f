package epoch

import "sync/atomic"

// Cell is a word that nonblocking structures change with [Op.CompareAndSwap],
// which also verifies the epoch: an update that would linearize after its
// operation's epoch has passed does not happen. Values are below 1<<63. The
// zero Cell holds 0. A Cell must not be copied after first use.
//
// It is a double-compare single-swap with helping, after Harris, Fraser and
// Pratt (DISC 2002), on one reusable descriptor per slot, after Arbel-Raviv and
// Brown (DISC 2017). A Load stores nothing unless it has to help.
type Cell struct{ v atomic.Uint64 }

// While a swap is under way the cell holds 1<<63 | slot<<45 | sequence number
// of the slot's descriptor.
const (
	cellMark = 1 << 63
	seqBits  = 45
	seqMask  = 1<<seqBits - 1
)

const (
	undecided = iota + 1
	succeeded
	refused
)

// descriptor describes a slot's swap. Its fields are valid for readers who find
// status to have the sequence number they look for after reading them.
type descriptor struct {
	status        atomic.Uint64 // sequence<<2 | outcome
	epoch         atomic.Uint64
	before, after atomic.Uint64
}

// Store sets the cell while nobody else uses it.
func (c *Cell) Store(v uint64) { c.v.Store(v) }

// Load returns the cell's value.
func (s *System) Load(c *Cell) uint64 {
	for {
		v := c.v.Load()
		if v&cellMark == 0 {
			return v
		}
		s.help(c, v)
	}
}

// CompareAndSwap replaces before by after if the cell holds before and the clock
// still shows the operation's epoch, as one step. If the epoch has passed the
// error is ErrOldSeesNew, and nothing has changed.
func (op Op) CompareAndSwap(c *Cell, before, after uint64) (bool, error) {
	s, err := op.Slot()
	if err != nil {
		return false, err
	}
	d := &s.dcss
	seq := (d.status.Load()>>2 + 1) & seqMask
	d.status.Store(seq<<2 | refused) // readers of the old sequence number stop here
	d.epoch.Store(s.epoch)
	d.before.Store(before)
	d.after.Store(after)
	d.status.Store(seq<<2 | undecided)
	mark := cellMark | uint64(s.id)<<seqBits | seq
	for !c.v.CompareAndSwap(before, mark) {
		v := c.v.Load()
		switch {
		case v&cellMark != 0:
			s.sys.help(c, v)
		case v != before:
			return false, nil
		}
	}
	s.sys.help(c, mark)
	if d.status.Load() == seq<<2|succeeded {
		return true, nil
	}
	return false, ErrOldSeesNew
}

// help completes the swap whose mark was found in c.
//
// Ordering: the clock is read while the mark is in the cell, which is where the
// swap takes effect; whoever decides first decides for all. A helper whose
// sequence number has passed finds every compare and swap refused, for marks
// and sequence numbers are not used twice.
func (s *System) help(c *Cell, mark uint64) {
	d := &s.slot(int(mark &^ cellMark >> seqBits)).dcss
	seq := mark & seqMask
	e, before, after := d.epoch.Load(), d.before.Load(), d.after.Load()
	st := d.status.Load()
	if st>>2 != seq {
		return
	}
	if st&3 == undecided {
		outcome := uint64(refused)
		if s.Now() == e {
			outcome = succeeded
		}
		d.status.CompareAndSwap(seq<<2|undecided, seq<<2|outcome)
		if st = d.status.Load(); st>>2 != seq {
			return
		}
	}
	if st&3 == succeeded {
		c.v.CompareAndSwap(mark, after)
	} else {
		c.v.CompareAndSwap(mark, before)
	}
}

func (s *System) slot(id int) *Slot { return &s.chunks()[id/chunkSlots][id%chunkSlots] }
