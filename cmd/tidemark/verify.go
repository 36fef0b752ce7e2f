package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// verifyReport is what verify -json prints.
type verifyReport struct {
	Dir         string    `json:"dir"`
	Clean       bool      `json:"clean"`    // nothing was found
	Complete    bool      `json:"complete"` // everything was read
	Superblocks int       `json:"superblocks"`
	Payloads    uint64    `json:"payloads"`
	Bytes       uint64    `json:"bytes"`
	Problems    []problem `json:"problems"`
}

func verify(c *call) error {
	b := newBar(c.stderr)
	rep, err := c.verify(b)
	b.clear()
	var e *tidemark.CorruptError
	if errors.As(err, &e) { // even the header or the clock
		c.found.add(e)
		err = nil
	}
	rep.Dir, rep.Problems = c.args[0], c.found.list()
	if err != nil && len(rep.Problems) == 0 && c.ctx.Err() == nil {
		return err // it never ran
	}
	rep.Clean = err == nil && len(rep.Problems) == 0
	return errors.Join(err, c.report(rep))
}

// verify reads the heap twice: all of it as the framework sees it, and its maps
// as their package does.
func (c *call) verify(b *bar) (rep verifyReport, err error) {
	opt := tidemark.Options{Progress: b.show}
	got, err := tidemark.Verify(c.ctx, c.args[0], c.options(opt))
	for _, p := range got.Problems {
		c.found.add(p)
	}
	rep = verifyReport{Superblocks: got.Superblocks, Payloads: got.Payloads, Bytes: got.Bytes}
	if err != nil {
		return rep, err
	}
	h, err := c.open(opt)
	if err != nil {
		return rep, err
	}
	defer h.Close()
	for _, s := range h.Structures() {
		if s.Kind != hashmap.Kind {
			continue
		}
		m, err := openMap(c.ctx, h, s.Name)
		if err != nil {
			return rep, err
		}
		m.Close()
	}
	rep.Complete = true
	return rep, nil
}

func (c *call) report(rep verifyReport) error {
	if c.json {
		return writeJSON(c.stdout, rep)
	}
	if err := c.found.print(c.stdout); err != nil {
		return err
	}
	var verdict string
	switch n := len(rep.Problems); {
	case !rep.Complete && n == 0:
		verdict = "not finished"
	case n == 0:
		verdict = "no damage"
	case n == 1:
		verdict = "1 problem"
	default:
		verdict = fmt.Sprint(n, " problems")
	}
	_, err := fmt.Fprintf(c.stdout, "%s: %s; read %d superblocks (%s), %d payloads\n",
		c.args[0], verdict, rep.Superblocks, bytesText(rep.Bytes), rep.Payloads)
	return err
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
