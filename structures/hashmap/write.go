package hashmap

import (
	"slices"

	"github.com/tidemark-db/tidemark"
)

// Put sets the value of key.
func (m *Map) Put(key, val []byte) error {
	_, err := m.do(request{key: key, val: val, kind: put})
	return err
}

// PutIfAbsent sets the value of key unless key is there, and reports whether it did.
func (m *Map) PutIfAbsent(key, val []byte) (bool, error) {
	return m.do(request{key: key, val: val, kind: putIfAbsent})
}

// Delete removes key and reports whether it was there. It needs no space.
func (m *Map) Delete(key []byte) (bool, error) {
	return m.do(request{key: key, kind: remove})
}

// CompareAndSwap sets the value of key to val if it is old, and reports whether
// it did. A nil old means that key is absent; an empty one, that its value is empty.
func (m *Map) CompareAndSwap(key, old, val []byte) (bool, error) {
	return m.do(request{key: key, val: val, kind: compareAndSwap, old: old, present: old != nil})
}

// CompareAndDelete removes key if its value is old, and reports whether it did.
// A nil old is a key that is absent, of which nothing needs to be done.
func (m *Map) CompareAndDelete(key, old []byte) (bool, error) {
	return m.do(request{key: key, kind: compareAndDelete, old: old, present: old != nil})
}

// Update has change see the value of key, if it is there, and makes what it
// returns the new value, or removes key if it returns false. No lock is held
// meanwhile: if the value has changed in between, change is called again. change
// may modify old and return it, but must not keep it.
func (m *Map) Update(key []byte, change func(old []byte, ok bool) (val []byte, keep bool)) error {
	return m.update(key, change, m.AppendGet, m.do)
}

func (m *Map) update(key []byte, change func([]byte, bool) ([]byte, bool), get func(dst, key []byte) ([]byte, error), do func(request) (bool, error)) error {
	var buf, copied []byte
	for {
		old, err := get(buf[:0], key)
		if err != nil && err != tidemark.ErrNotFound {
			return err
		}
		ok := err == nil
		var own []byte // a copy that change may modify; nil only if key is absent
		if ok {
			copied = append(slices.Grow(copied[:0], len(old)+1), old...)
			own = copied
		}
		val, keep := change(own, ok)
		r := request{key: key, val: val, kind: compareAndSwap, old: old, present: ok}
		if !keep {
			r.kind, r.val = compareAndDelete, nil
		}
		if done, err := do(r); done || err != nil {
			return err
		}
		buf = old
	}
}

// Clear removes every entry that is there when Clear comes to its bucket, each as
// an operation of its own.
func (m *Map) Clear() error {
	for key := range m.Keys() {
		if _, err := m.Delete(key); err != nil {
			return err
		}
	}
	op, err := m.begin() // has the loop ended because the map is closed?
	if err != nil {
		return err
	}
	op.End()
	return m.h.Err()
}

// Tx is a map within an operation: the same methods, whose changes are kept or
// undone together with all others of the operation. What they return besides:
// ErrOldSeesNew and ErrConflict, to be passed on so that Heap.Do can begin again.
type Tx struct {
	m  *Map
	op tidemark.Op
}

// In returns the map within op.
func (m *Map) In(op tidemark.Op) Tx { return Tx{m, op} }

func (x Tx) do(r request) (bool, error) {
	if err := r.check(); err != nil {
		return false, err
	}
	if len(r.val) >= largeValue {
		var err error
		if r.large, err = x.m.create(x.op, &r); err != nil {
			return false, err
		}
		ok, err := x.m.in(x.op, &r)
		if err != nil {
			x.m.space.Delete(x.op, r.large)
		}
		return ok, err
	}
	return x.m.in(x.op, &r)
}

// Get is [Map.Get] within the operation.
func (x Tx) Get(key []byte) ([]byte, error) { return x.AppendGet(nil, key) }

// AppendGet is [Map.AppendGet] within the operation.
func (x Tx) AppendGet(dst, key []byte) ([]byte, error) {
	if _, err := x.m.slot(x.op); err != nil {
		return dst, err
	}
	return x.m.get(x.op, dst, key, true)
}

// Has is [Map.Has] within the operation.
func (x Tx) Has(key []byte) (bool, error) { return x.m.has(x.op, key, true) }

// Put is [Map.Put] within the operation.
func (x Tx) Put(key, val []byte) error {
	_, err := x.do(request{key: key, val: val, kind: put})
	return err
}

// PutIfAbsent is [Map.PutIfAbsent] within the operation.
func (x Tx) PutIfAbsent(key, val []byte) (bool, error) {
	return x.do(request{key: key, val: val, kind: putIfAbsent})
}

// Delete is [Map.Delete] within the operation.
func (x Tx) Delete(key []byte) (bool, error) {
	return x.do(request{key: key, kind: remove})
}

// CompareAndSwap is [Map.CompareAndSwap] within the operation.
func (x Tx) CompareAndSwap(key, old, val []byte) (bool, error) {
	return x.do(request{key: key, val: val, kind: compareAndSwap, old: old, present: old != nil})
}

// CompareAndDelete is [Map.CompareAndDelete] within the operation.
func (x Tx) CompareAndDelete(key, old []byte) (bool, error) {
	return x.do(request{key: key, kind: compareAndDelete, old: old, present: old != nil})
}

// Update is [Map.Update] within the operation.
func (x Tx) Update(key []byte, change func(old []byte, ok bool) (val []byte, keep bool)) error {
	return x.m.update(key, change, x.AppendGet, x.do)
}

// Clear removes every entry, all of them with the operation.
func (x Tx) Clear() error {
	if _, err := x.m.slot(x.op); err != nil {
		return err
	}
	for key := range x.m.Keys() {
		if _, err := x.Delete(key); err != nil {
			return err
		}
	}
	op, err := x.m.begin() // has the loop ended because the heap is being closed?
	op.End()
	return err
}
