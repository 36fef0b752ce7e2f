// Package history records what a test did to a heap, and says which states a
// crash may leave: the oracle of buffered durable linearizability.
package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Change sets a key, or removes it if Gone.
type Change struct {
	Key, Val string
	Gone     bool
}

// Oracle knows the operations of one generation of a heap, in the order in which
// they took effect. The state after a crash with boundary b is that of all
// operations of epochs up to b; operations that did not end never count.
type Oracle struct {
	base    map[string]string
	ops     []op
	acked   uint64
	version uint64
}

type op struct {
	epoch   uint64
	changes []Change
}

// New returns the oracle of a generation that begins with the state base.
func New(base map[string]string) *Oracle { return &Oracle{base: maps.Clone(base)} }

// Ended records an operation that has ended, all its changes at once.
func (o *Oracle) Ended(epoch uint64, changes ...Change) {
	o.ops = append(o.ops, op{epoch, changes})
	o.version++
}

// Acked records that epochs up to b are known to be durable.
func (o *Oracle) Acked(b uint64) {
	if b > o.acked {
		o.acked = b
		o.version++
	}
}

// Version changes whenever the set of legal states may have.
func (o *Oracle) Version() uint64 { return o.version }

// State returns the state after a crash with boundary b.
func (o *Oracle) State(b uint64) map[string]string {
	s := maps.Clone(o.base)
	if s == nil {
		s = map[string]string{}
	}
	for _, p := range o.ops {
		if p.epoch > b {
			continue
		}
		for _, c := range p.changes {
			if c.Gone {
				delete(s, c.Key)
			} else {
				s[c.Key] = c.Val
			}
		}
	}
	return s
}

// Check says why have is not what a crash with boundary b may leave.
func (o *Oracle) Check(b uint64, have map[string]string) error {
	if b < o.acked {
		return fmt.Errorf("epoch %d was known to be durable, recovery kept epochs up to %d", o.acked, b)
	}
	want := o.State(b)
	if maps.Equal(want, have) {
		return nil
	}
	var diff strings.Builder
	for _, k := range slices.Sorted(maps.Keys(union(want, have))) {
		w, inWant := want[k]
		h, inHave := have[k]
		if inWant != inHave || w != h {
			fmt.Fprintf(&diff, "\n  %s: want %s, have %s", k, show(w, inWant), show(h, inHave))
		}
	}
	return fmt.Errorf("boundary %d, acknowledged %d: the state is not that of its operations:%s\noperations (epoch: changes): %v", b, o.acked, diff.String(), o.ops)
}

func show(v string, ok bool) string {
	if !ok {
		return "nothing"
	}
	if len(v) > 20 {
		return fmt.Sprintf("%q... (%d bytes)", v[:20], len(v))
	}
	return fmt.Sprintf("%q", v)
}

func union(a, b map[string]string) map[string]string {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// Next returns the oracle of the generation after a crash with boundary b.
func (o *Oracle) Next(b uint64) *Oracle { return New(o.State(b)) }
