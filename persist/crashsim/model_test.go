package crashsim_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// naive is the model of the package comment with nothing pruned: words 0 and 1
// are on one line, 2 and 3 on lines of their own.
type naive struct {
	redo, words bool
	now         [4]byte
	hist        [3][][4]byte // contents of a line, oldest first
	durable     [3]int       // Lines
	marks       [3][3]int    // Lines: by handle
	notes       [3][]naiveRecord
	log         []naiveRecord // Redo
	synced      int
	done        int // stores before it are executed
}

type naiveRecord struct {
	store bool
	word  int
	v     byte
}

var naiveLine = [4]int{0, 0, 1, 2}
var naiveOff = [4]persist.Off{a, b, c, d}

func newNaive(redo, words bool) *naive {
	n := &naive{redo: redo, words: words}
	for i := range n.hist {
		n.hist[i] = [][4]byte{{}}
	}
	return n
}

func (n *naive) set(w int, v byte) {
	n.now[w] = v
	l := naiveLine[w]
	n.hist[l] = append(n.hist[l], n.now)
}

func (n *naive) order(h int) {
	if !n.redo {
		for l := range n.hist {
			n.durable[l] = max(n.durable[l], n.marks[h][l])
		}
		return
	}
	for _, r := range n.notes[h] {
		if !r.store {
			r.v = n.now[r.word]
			for _, s := range n.log[n.done:] {
				if s.store && s.word == r.word {
					r.v = s.v
				}
			}
		}
		n.log = append(n.log, r)
	}
	n.notes[h] = nil
}

// images enumerates by brute force.
func (n *naive) images() string {
	set := map[string]bool{}
	var choices [4][]byte // of words alone
	var rec func(l int, img [4]byte)
	replay := func(img [4]byte) {
		for k := n.synced; k <= len(n.log); k++ {
			out := img
			for _, r := range n.log[:k] {
				out[r.word] = r.v
			}
			set[fmt.Sprint(out[0], out[1], out[2], out[3])] = true
		}
	}
	rec = func(l int, img [4]byte) {
		if l == 4 || !n.words && l == 3 {
			replay(img)
			return
		}
		if n.words {
			for _, v := range choices[l] {
				img[l] = v
				rec(l+1, img)
			}
			return
		}
		for _, c := range n.hist[l][n.durable[l]:] {
			for w, of := range naiveLine {
				if of == l {
					img[w] = c[w]
				}
			}
			rec(l+1, img)
		}
	}
	for w, l := range naiveLine {
		for _, c := range n.hist[l][n.durable[l]:] {
			choices[w] = append(choices[w], c[w])
		}
	}
	rec(0, [4]byte{})
	return strings.Join(slices.Sorted(maps.Keys(set)), ", ")
}

func TestAgainstNaiveModel(t *testing.T) {
	runs := 1500
	if testing.Short() {
		runs = 300
	}
	for seed := range runs {
		rng := rand.New(rand.NewPCG(uint64(seed), 5))
		cfg := crashsim.Config{Words: rng.IntN(2) == 0}
		if rng.IntN(2) == 0 {
			cfg.Flavor = crashsim.Redo
		}
		m, n := newMachine(t, cfg), newNaive(cfg.Flavor == crashsim.Redo, cfg.Words)
		var program []string
		for range 12 {
			w, h, v := rng.IntN(4), 1+rng.IntN(2), byte(1+rng.IntN(3))
			switch rng.IntN(7) {
			case 0, 1:
				program = append(program, fmt.Sprintf("%c=%d", 'a'+w, v))
				set(m, naiveOff[w], uint64(v))
				if n.now[w] != v {
					n.set(w, v)
				}
			case 2:
				program = append(program, fmt.Sprintf("%c:%d by %d", 'a'+w, v, h))
				m.Store(h, naiveOff[w], uint64(v))
				if n.redo {
					n.notes[h] = append(n.notes[h], naiveRecord{store: true, word: w, v: v})
				} else {
					n.set(w, v)
				}
			case 3, 4:
				program = append(program, fmt.Sprintf("wb %c by %d", 'a'+w, h))
				m.WriteBack(h, naiveOff[w], 8)
				l := naiveLine[w]
				n.marks[h][l] = len(n.hist[l]) - 1
				n.notes[h] = append(n.notes[h], naiveRecord{word: w})
			case 5:
				program = append(program, fmt.Sprintf("order %d", h))
				m.Order(h)
				n.order(h)
			case 6:
				program = append(program, fmt.Sprintf("fence %d", h))
				m.Fence(h)
				n.order(h)
				if n.redo {
					for _, r := range n.log[n.done:] {
						if r.store {
							n.set(r.word, r.v)
						}
					}
					n.synced, n.done = len(n.log), len(n.log)
				}
			}
			got := map[string]bool{}
			for choice, im := range m.Images(1<<20, nil) {
				got[fmt.Sprint(get(im, a), get(im, b), get(im, c), get(im, d))] = true
				if again := m.Crash(choice); string(again.Memory()[:0x500]) != string(im.Memory()[:0x500]) {
					t.Fatalf("seed %d: %q is not reproduced", seed, choice)
				} else {
					again.Release()
				}
				im.Release()
			}
			if g, want := strings.Join(slices.Sorted(maps.Keys(got)), ", "), n.images(); g != want {
				t.Fatalf("seed %d, %v words %v, %s:\ngot  %s\nwant %s", seed, cfg.Flavor, cfg.Words, strings.Join(program, "; "), g, want)
			}
		}
		m.Release()
	}
}
