package payload

import (
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
	"unsafe"

	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/persist"
)

// ErrType: a Go type that cannot be a payload; the message names the field.
var ErrType = errors.New("tidemark: type cannot be a payload")

// Descriptor identifies a payload type in the heap's directory.
type Descriptor struct {
	Name        string // given by the author; stable across versions of the program
	Fingerprint uint64 // of the memory layout: field names, types, offsets, sizes
}

// Type is a pointer-free Go type that payloads can hold. Make it once, as a
// package variable, and name it when opening the structure that uses it.
type Type[T any] struct{ d Descriptor }

// TypeOf checks T by reflection. Types with pointers, slices, maps, strings,
// interfaces, channels, functions, platform-sized integers, locks or atomics are
// refused with an error that matches ErrType and names the field.
func TypeOf[T any](name string) (*Type[T], error) {
	t := reflect.TypeFor[T]()
	var layout strings.Builder
	if err := describe(&layout, t, t.String()); err != nil {
		return nil, err
	}
	if t.Size() == 0 {
		return nil, fmt.Errorf("%w: %v has no size", ErrType, t)
	}
	h := fnv.New64a()
	h.Write([]byte(layout.String()))
	return &Type[T]{Descriptor{name, h.Sum64()}}, nil
}

// MustType is TypeOf for package variables: it panics on an error.
func MustType[T any](name string) *Type[T] {
	t, err := TypeOf[T](name)
	if err != nil {
		panic(err)
	}
	return t
}

func describe(w *strings.Builder, t reflect.Type, path string) error {
	if p := t.PkgPath(); p == "sync" || p == "sync/atomic" || p == "internal/sync" {
		return fmt.Errorf("%w: %s is a %v, whose state means nothing after a restart", ErrType, path, t)
	}
	switch k := t.Kind(); k {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		w.WriteString(k.String())
	case reflect.Array:
		fmt.Fprintf(w, "[%d]", t.Len())
		return describe(w, t.Elem(), path+"[]")
	case reflect.Struct:
		fmt.Fprintf(w, "struct %d{", t.Size())
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprintf(w, "%s@%d ", f.Name, f.Offset)
			if err := describe(w, f.Type, path+"."+f.Name); err != nil {
				return err
			}
			w.WriteByte(';')
		}
		w.WriteByte('}')
	case reflect.Int, reflect.Uint, reflect.Uintptr:
		return fmt.Errorf("%w: %s is a %v, whose size depends on the platform", ErrType, path, t)
	default:
		return fmt.Errorf("%w: %s is a %v (%v), which holds pointers", ErrType, path, t, k)
	}
	return nil
}

// Descriptor returns what identifies the type.
func (t *Type[T]) Descriptor() Descriptor { return t.d }

// tag returns the tag of the type's payloads in s.
func (t *Type[T]) tag(s *Space) (uint16, error) {
	for i := range s.types {
		if s.types[i].Fingerprint == t.d.Fingerprint && s.types[i].Name == t.d.Name {
			return uint16(i + 1), nil
		}
	}
	return 0, fmt.Errorf("%w: %q is not among the types its structure was opened with", ErrType, t.d.Name)
}

// New creates a payload that holds v. See [Space.New].
func (t *Type[T]) New(op epoch.Op, s *Space, v T) (Ref, error) {
	tag, err := t.tag(s)
	if err != nil {
		return 0, err
	}
	// Sound: T holds no pointers, and the bytes are copied before New returns.
	return s.New(op, tag, unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// Get returns a copy of the value at ref. See [Space.Get].
func (t *Type[T]) Get(op epoch.Op, s *Space, ref Ref) (T, error) {
	var zero T
	slot, err := s.slot(op)
	if err != nil {
		return zero, err
	}
	if err := s.see(slot, ref); err != nil {
		return zero, err
	}
	p, err := t.View(s, ref)
	if err != nil {
		return zero, err
	}
	return *p, nil
}

// View returns the value at ref in place, to be read as [Space.Bytes] says.
func (t *Type[T]) View(s *Space, ref Ref) (*T, error) {
	if err := s.known(ref); err != nil {
		return nil, err
	}
	h := readHead(s.r, persist.Off(ref))
	if tag, err := t.tag(s); err != nil {
		return nil, err
	} else if tag != h.tag || h.size != int(unsafe.Sizeof(*new(T))) {
		return nil, fmt.Errorf("%w: %#x has tag %d and %d bytes, not a %q", ErrStaleRef, uint64(ref), h.tag, h.size, t.d.Name)
	}
	// Sound: contents are aligned to 8 bytes, as long as T, and T holds no pointers.
	return (*T)(s.r.Pointer(persist.Off(ref)+persist.Off(h.hdr), h.size)), nil
}

// Update changes the value at ref. See [Space.Update].
func (t *Type[T]) Update(op epoch.Op, s *Space, ref Ref, change func(*T)) (Ref, error) {
	slot, err := s.slot(op)
	if err != nil {
		return 0, err
	}
	if err := s.see(slot, ref); err != nil {
		return 0, err
	}
	if _, err := t.View(s, ref); err != nil {
		return 0, err
	}
	return s.Update(op, ref, func(b []byte) {
		// Sound: as in View, which checked length and tag.
		change((*T)(unsafe.Pointer(unsafe.SliceData(b))))
	})
}

// AppendBytes appends the value as it lies in memory. It means the same only on
// machines of one byte order.
func (t *Type[T]) AppendBytes(dst []byte, v *T) []byte {
	// Sound: T holds no pointers, and the bytes are copied.
	return append(dst, unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))...)
}

// FromBytes is the inverse of AppendBytes.
func (t *Type[T]) FromBytes(b []byte) (v T, err error) {
	if uintptr(len(b)) != unsafe.Sizeof(v) {
		return v, fmt.Errorf("%w: %d bytes for a %q of %d", ErrType, len(b), t.d.Name, unsafe.Sizeof(v))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), b) // sound: as above
	return v, nil
}
