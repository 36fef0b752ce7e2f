package hashmap

import (
	"encoding/json"
	"reflect"

	"github.com/tidemark-db/tidemark/payload"
)

// A Codec turns values into bytes and back. Keys that are equal must have equal
// bytes. Its methods are called by many goroutines, sometimes while a bucket is
// locked: they must not use the map.
type Codec[T any] interface {
	// Append appends the bytes of v to dst.
	Append(dst []byte, v T) ([]byte, error)
	// Decode returns the value of b, which it must not keep.
	Decode(b []byte) (T, error)
	// Descriptor identifies the encoding on media: opening a map whose encodings
	// have changed gives ErrSchema.
	Descriptor() payload.Descriptor
}

// Fixed is the codec of a pointer-free type, which it stores as it lies in memory,
// with zeros for padding and for fields named _. It panics where payload.TypeOf
// would refuse the type. Floats count by their bits: as keys, 0 and -0 are two,
// and a NaN is found again.
func Fixed[T any]() Codec[T] {
	t := payload.MustType[T]("fixed " + reflect.TypeFor[T]().String())
	return fixed[T]{t, gaps(nil, reflect.TypeFor[T](), 0)}
}

type fixed[T any] struct {
	t    *payload.Type[T]
	gaps []gap
}

func (f fixed[T]) Append(dst []byte, v T) ([]byte, error) {
	n := len(dst)
	dst = f.t.AppendBytes(dst, &v)
	for _, g := range f.gaps {
		clear(dst[n:][g.from:g.to])
	}
	return dst, nil
}

func (f fixed[T]) Decode(b []byte) (T, error)     { return f.t.FromBytes(b) }
func (f fixed[T]) Descriptor() payload.Descriptor { return f.t.Descriptor() }

// gap is a range of a type's bytes that == does not look at.
type gap struct{ from, to uintptr }

// gaps appends those of a type that lies at offset at.
func gaps(list []gap, t reflect.Type, at uintptr) []gap {
	switch t.Kind() {
	case reflect.Array:
		n := len(list)
		for i := range uintptr(t.Len()) {
			if list = gaps(list, t.Elem(), at+i*t.Elem().Size()); len(list) == n {
				break // elements have none
			}
		}
	case reflect.Struct:
		end := at
		for i := range t.NumField() {
			f := t.Field(i)
			from := at + f.Offset
			if end < from {
				list = append(list, gap{end, from})
			}
			if end = from + f.Type.Size(); f.Name != "_" {
				list = gaps(list, f.Type, from)
			} else if from < end {
				list = append(list, gap{from, end})
			}
		}
		if end < at+t.Size() {
			list = append(list, gap{end, at + t.Size()})
		}
	}
	return list
}

// String is the codec of strings.
func String() Codec[string] { return text{} }

type text struct{}

func (text) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }
func (text) Decode(b []byte) (string, error)             { return string(b), nil }
func (text) Descriptor() payload.Descriptor              { return payload.Descriptor{Name: "string"} }

// Bytes is the codec of byte slices, which it copies.
func Bytes() Codec[[]byte] { return raw{} }

type raw struct{}

func (raw) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }
func (raw) Decode(b []byte) ([]byte, error)             { return append([]byte{}, b...), nil }
func (raw) Descriptor() payload.Descriptor              { return payload.Descriptor{Name: "bytes"} }

// JSON is the codec of whatever encoding/json can encode; better for values than
// for keys.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

type jsonCodec[T any] struct{}

func (jsonCodec[T]) Append(dst []byte, v T) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (jsonCodec[T]) Decode(b []byte) (v T, err error) { return v, json.Unmarshal(b, &v) }
func (jsonCodec[T]) Descriptor() payload.Descriptor   { return payload.Descriptor{Name: "json"} }
