package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/recovery"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// entryLine is an entry of a map: of each pair of members there is one.
type entryLine struct {
	Key     *string `json:"key,omitempty"`
	Key64   []byte  `json:"key64,omitempty"`
	Value   *string `json:"value,omitempty"`
	Value64 []byte  `json:"value64,omitempty"`
}

// payloadLine is a payload of any other structure.
type payloadLine struct {
	Ref     string `json:"ref"`
	Tag     uint16 `json:"tag"`
	Size    int    `json:"size"`
	Bytes64 []byte `json:"bytes64"`
}

func dump(c *call) error {
	h, err := c.open(tidemark.Options{})
	if err != nil {
		return err
	}
	name := c.args[1]
	kind, ok := kindOf(h, name)
	if !ok {
		return errors.Join(unknownName(h, name), h.Close())
	}
	out := bufio.NewWriterSize(c.stdout, 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if kind == hashmap.Kind {
		err = c.dumpMap(h, name, enc)
	} else {
		err = c.dumpPayloads(h, name, enc)
	}
	err = errors.Join(err, out.Flush(), h.Close())
	c.found.print(c.stderr)
	return err
}

func kindOf(h *tidemark.Heap, name string) (string, bool) {
	for _, s := range h.Structures() {
		if s.Name == name {
			return s.Kind, true
		}
	}
	return "", false
}

func unknownName(h *tidemark.Heap, name string) error {
	var all []string
	for _, s := range h.Structures() {
		all = append(all, fmt.Sprintf("%s (%s)", show(s.Name), show(s.Kind)))
	}
	if len(all) == 0 {
		all = []string{"none"}
	}
	return fmt.Errorf("%s: there is no structure %q; there are: %s", h.Path(), name, strings.Join(all, ", "))
}

func (c *call) dumpMap(h *tidemark.Heap, name string, enc *json.Encoder) error {
	m, err := openMap(c.ctx, h, name)
	if err != nil {
		return err
	}
	defer m.Close()
	for key, val := range m.All() {
		var line entryLine
		line.Key, line.Key64 = textOrBytes(key)
		line.Value, line.Value64 = textOrBytes(val)
		if err := enc.Encode(line); err != nil {
			return err
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func textOrBytes(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}

func (c *call) dumpPayloads(h *tidemark.Heap, name string, enc *json.Encoder) error {
	st, err := h.Inspect(name)
	if err != nil {
		return err
	}
	defer st.Close()
	return st.Rebuild(c.ctx, 1, func(_ int, it *recovery.Iterator) error {
		b := it.Bytes()
		return enc.Encode(payloadLine{fmt.Sprintf("%#x", uint64(it.Ref())), it.Tag(), len(b), b})
	})
}

// openMap opens a hash map whatever its keys and values are encoded from.
func openMap(ctx context.Context, h *tidemark.Heap, name string) (*hashmap.Map, error) {
	st, err := h.Inspect(name)
	if err != nil {
		return nil, err
	}
	return hashmap.FromStructure(ctx, st, nil)
}
