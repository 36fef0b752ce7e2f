package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/tidemark-db/tidemark"
)

// A problem is one piece of damage.
type problem struct {
	Structure string `json:"structure,omitempty"`
	Offset    uint64 `json:"offset"` // in the heap file
	Rule      string `json:"rule"`
}

func (p problem) String() string {
	s := fmt.Sprintf("offset %#x: %s", p.Offset, p.Rule)
	if p.Structure != "" {
		s = fmt.Sprintf("structure %q: %s", p.Structure, s)
	}
	return s
}

// problems collects damage from several goroutines. What is found several times,
// by different steps, is kept once.
type problems struct {
	mu   sync.Mutex
	seen map[problemKey]problem
}

// problemKey is the place and the number of the rule, such as "L2".
type problemKey struct {
	offset uint64
	rule   string
}

func (ps *problems) add(e *tidemark.CorruptError) {
	p := problem{e.Structure, uint64(e.Off), e.Rule}
	number, _, _ := strings.Cut(p.Rule, ":")
	key := problemKey{p.Offset, number}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.seen == nil {
		ps.seen = map[problemKey]problem{}
	}
	if old, ok := ps.seen[key]; !ok || old.Structure == "" {
		ps.seen[key] = p
	}
}

func (ps *problems) len() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.seen)
}

// list returns the problems by offset. It is never nil.
func (ps *problems) list() []problem {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	list := make([]problem, 0, len(ps.seen))
	for _, p := range ps.seen {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Rule, b.Rule))
	})
	return list
}

// print writes one line a problem.
func (ps *problems) print(w io.Writer) error {
	for _, p := range ps.list() {
		if _, err := fmt.Fprintln(w, "damage:", p); err != nil {
			return err
		}
	}
	return nil
}
