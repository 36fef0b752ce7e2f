package hashmap

import (
	"encoding/json"
	"fmt"
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

// Fixed is the codec of a pointer-free type, which it stores as it lies in memory.
// It panics where payload.TypeOf would refuse the type, and for types with padding,
// whose bytes would not be determined by the value.
func Fixed[T any]() Codec[T] {
	t := payload.MustType[T]("fixed " + reflect.TypeFor[T]().String())
	if n := padding(reflect.TypeFor[T]()); n > 0 {
		panic(fmt.Errorf("%w: %v has %d bytes of padding; name them", payload.ErrType, reflect.TypeFor[T](), n))
	}
	return fixed[T]{t}
}

type fixed[T any] struct{ t *payload.Type[T] }

func (f fixed[T]) Append(dst []byte, v T) ([]byte, error) { return f.t.AppendBytes(dst, &v), nil }
func (f fixed[T]) Decode(b []byte) (T, error)             { return f.t.FromBytes(b) }
func (f fixed[T]) Descriptor() payload.Descriptor         { return f.t.Descriptor() }

// padding returns how many bytes of a type belong to no field.
func padding(t reflect.Type) int {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() * padding(t.Elem())
	case reflect.Struct:
		n := int(t.Size())
		for i := range t.NumField() {
			f := t.Field(i).Type
			n -= int(f.Size()) - padding(f)
		}
		return n
	}
	return 0
}

// String is the codec of strings.
func String() Codec[string] { return text{} }

type text struct{}

func (text) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }
func (text) Decode(b []byte) (string, error)             { return string(b), nil }
func (text) Descriptor() payload.Descriptor              { return payload.Descriptor{Name: "string"} }

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
