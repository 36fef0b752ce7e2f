package hashmap

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/tidemark-db/tidemark"
)

// Typed is a [Map] of typed keys and values. What the methods of Map promise, its
// methods do; an error of a codec is passed on, and nothing has changed then.
type Typed[K, V any] struct {
	m    *Map
	keys Codec[K]
	vals Codec[V]
	bufs *sync.Pool // of *buffers
}

type buffers struct{ key, val, old []byte }

// OpenTyped opens the map called name, with the encodings it was made with: others
// give ErrSchema, and a map that was made by Open gives it, too.
func OpenTyped[K, V any](h *tidemark.Heap, name string, keys Codec[K], vals Codec[V], opt *Options) (*Typed[K, V], error) {
	m, err := open(context.Background(), h, name, opt, keys.Descriptor(), vals.Descriptor())
	if err != nil {
		return nil, err
	}
	return &Typed[K, V]{m, keys, vals, &sync.Pool{New: func() any { return new(buffers) }}}, nil
}

// Map returns the map of bytes underneath.
func (t *Typed[K, V]) Map() *Map { return t.m }

// TypedTx is a typed map within an operation; see [Map.In].
type TypedTx[K, V any] struct {
	t *Typed[K, V]
	x ops // a Tx, in an interface once and for all
}

// In returns the map within op.
func (t *Typed[K, V]) In(op tidemark.Op) TypedTx[K, V] { return TypedTx[K, V]{t, t.m.In(op)} }

// ops is what Map and Tx have in common.
type ops interface {
	AppendGet(dst, key []byte) ([]byte, error)
	Has(key []byte) (bool, error)
	Put(key, val []byte) error
	PutIfAbsent(key, val []byte) (bool, error)
	Delete(key []byte) (bool, error)
	CompareAndSwap(key, old, val []byte) (bool, error)
	CompareAndDelete(key, old []byte) (bool, error)
	Clear() error
}

// with encodes a key into a buffer of the pool and runs f.
func (t *Typed[K, V]) with(key K, f func(b *buffers) error) error {
	b := t.bufs.Get().(*buffers)
	defer t.release(b)
	var err error
	if b.key, err = t.keys.Append(b.key[:0], key); err != nil {
		return err
	}
	return f(b)
}

// maxPooled bounds what a pooled buffer keeps.
const maxPooled = 1 << 20

func (t *Typed[K, V]) release(b *buffers) {
	if cap(b.key)+cap(b.val)+cap(b.old) <= maxPooled {
		t.bufs.Put(b)
	}
}

// withValue encodes a value as well.
func (t *Typed[K, V]) withValue(key K, val V, f func(b *buffers) error) error {
	return t.with(key, func(b *buffers) (err error) {
		if b.val, err = t.vals.Append(b.val[:0], val); err != nil {
			return err
		}
		return f(b)
	})
}

func (t *Typed[K, V]) get(o ops, key K) (val V, err error) {
	err = t.with(key, func(b *buffers) (err error) {
		if b.val, err = o.AppendGet(b.val[:0], b.key); err == nil {
			val, err = t.vals.Decode(b.val)
		}
		return err
	})
	return val, err
}

func (t *Typed[K, V]) has(o ops, key K) (ok bool, err error) {
	err = t.with(key, func(b *buffers) (err error) { ok, err = o.Has(b.key); return err })
	return ok, err
}

func (t *Typed[K, V]) put(o ops, key K, val V) error {
	return t.withValue(key, val, func(b *buffers) error { return o.Put(b.key, b.val) })
}

func (t *Typed[K, V]) putIfAbsent(o ops, key K, val V) (ok bool, err error) {
	err = t.withValue(key, val, func(b *buffers) (err error) { ok, err = o.PutIfAbsent(b.key, b.val); return err })
	return ok, err
}

func (t *Typed[K, V]) remove(o ops, key K) (ok bool, err error) {
	err = t.with(key, func(b *buffers) (err error) { ok, err = o.Delete(b.key); return err })
	return ok, err
}

func (t *Typed[K, V]) swap(o ops, key K, old, val V) (ok bool, err error) {
	err = t.withValue(key, val, func(b *buffers) (err error) {
		if b.old, err = t.vals.Append(b.old[:0], old); err != nil {
			return err
		}
		if b.old == nil {
			b.old = []byte{} // nil would mean absent
		}
		ok, err = o.CompareAndSwap(b.key, b.old, b.val)
		return err
	})
	return ok, err
}

func (t *Typed[K, V]) removeIf(o ops, key K, old V) (ok bool, err error) {
	err = t.with(key, func(b *buffers) (err error) {
		if b.old, err = t.vals.Append(b.old[:0], old); err != nil {
			return err
		}
		if b.old == nil {
			b.old = []byte{} // nil would mean absent
		}
		ok, err = o.CompareAndDelete(b.key, b.old)
		return err
	})
	return ok, err
}

func (t *Typed[K, V]) update(o ops, key K, change func(old V, ok bool) (V, bool)) error {
	return t.with(key, func(b *buffers) (err error) {
		for {
			var old V
			var ok, done bool
			switch b.old, err = o.AppendGet(b.old[:0], b.key); err {
			case nil:
				if old, err = t.vals.Decode(b.old); err != nil {
					return err
				}
				ok = true
			case tidemark.ErrNotFound:
				b.old = nil
			default:
				return err
			}
			if val, keep := change(old, ok); !keep {
				done, err = o.CompareAndDelete(b.key, b.old)
			} else if b.val, err = t.vals.Append(b.val[:0], val); err == nil {
				done, err = o.CompareAndSwap(b.key, b.old, b.val)
			}
			if done || err != nil {
				return err
			}
		}
	})
}

// Get returns the value of key, or ErrNotFound.
func (t *Typed[K, V]) Get(key K) (V, error) { return t.get(t.m, key) }

// Has reports whether key is there.
func (t *Typed[K, V]) Has(key K) (bool, error) { return t.has(t.m, key) }

// Put sets the value of key.
func (t *Typed[K, V]) Put(key K, val V) error { return t.put(t.m, key, val) }

// PutIfAbsent sets the value of key unless key is there, and reports whether it did.
func (t *Typed[K, V]) PutIfAbsent(key K, val V) (bool, error) { return t.putIfAbsent(t.m, key, val) }

// Delete removes key and reports whether it was there.
func (t *Typed[K, V]) Delete(key K) (bool, error) { return t.remove(t.m, key) }

// CompareAndSwap sets the value of key to val if its encoding is that of old, and
// reports whether it did. PutIfAbsent is for keys that are not there.
func (t *Typed[K, V]) CompareAndSwap(key K, old, val V) (bool, error) {
	return t.swap(t.m, key, old, val)
}

// CompareAndDelete removes key if the encoding of its value is that of old, and
// reports whether it did.
func (t *Typed[K, V]) CompareAndDelete(key K, old V) (bool, error) { return t.removeIf(t.m, key, old) }

// Update has change see the value of key, if it is there, and makes what it
// returns the new value, or removes key if it returns false. See [Map.Update].
func (t *Typed[K, V]) Update(key K, change func(old V, ok bool) (V, bool)) error {
	return t.update(t.m, key, change)
}

// Len, Clear and Close are those of [Map].
func (t *Typed[K, V]) Len() int     { return t.m.Len() }
func (t *Typed[K, V]) Clear() error { return t.m.Clear() }
func (t *Typed[K, V]) Close() error { return t.m.Close() }

// All returns the entries as [Map.All] does. An entry that does not decode ends
// the loop; *err then says why.
func (t *Typed[K, V]) All(err *error) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for kb, vb := range t.m.All() {
			k, e := t.keys.Decode(kb)
			var v V
			if e == nil {
				v, e = t.vals.Decode(vb)
			}
			if t.bad(err, kb, e) || !yield(k, v) {
				return
			}
		}
	}
}

// Keys returns the keys as [Map.Keys] does. Its err is that of All.
func (t *Typed[K, V]) Keys(err *error) iter.Seq[K] {
	return func(yield func(K) bool) {
		for kb := range t.m.Keys() {
			k, e := t.keys.Decode(kb)
			if t.bad(err, kb, e) || !yield(k) {
				return
			}
		}
	}
}

// bad reports whether an entry did not decode, and says so in *err.
func (t *Typed[K, V]) bad(err *error, key []byte, e error) bool {
	if e != nil && err != nil {
		*err = fmt.Errorf("tidemark: %s: map %q: key %x: %w", t.m.h.Path(), t.m.Name(), key[:min(len(key), 64)], e)
	}
	return e != nil
}

// The methods of [Typed] within the operation.

func (x TypedTx[K, V]) Get(key K) (V, error)       { return x.t.get(x.x, key) }
func (x TypedTx[K, V]) Has(key K) (bool, error)    { return x.t.has(x.x, key) }
func (x TypedTx[K, V]) Put(key K, val V) error     { return x.t.put(x.x, key, val) }
func (x TypedTx[K, V]) Delete(key K) (bool, error) { return x.t.remove(x.x, key) }
func (x TypedTx[K, V]) PutIfAbsent(key K, val V) (bool, error) {
	return x.t.putIfAbsent(x.x, key, val)
}
func (x TypedTx[K, V]) CompareAndSwap(key K, old, val V) (bool, error) {
	return x.t.swap(x.x, key, old, val)
}
func (x TypedTx[K, V]) Update(key K, change func(old V, ok bool) (V, bool)) error {
	return x.t.update(x.x, key, change)
}
func (x TypedTx[K, V]) CompareAndDelete(key K, old V) (bool, error) {
	return x.t.removeIf(x.x, key, old)
}
func (x TypedTx[K, V]) Clear() error { return x.x.Clear() }
