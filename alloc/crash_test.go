package alloc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

var (
	crashHistories = flag.Int("crash.histories", 3, "random histories of the crash test, for each flavour")
	crashSeed      = flag.Uint64("crash.seed", 1, "seed of the first of them")
)

// user allocates and frees by the rules, with fences in place of epochs: a block
// counts once its word is fenced, and is freed once it is durably dead.
type user struct {
	r      *persist.Region
	a      *Allocator
	h      persist.Handle
	c      Cache
	book   *book
	serial uint64
}

// book is what is known of blocks; it outlives the crashes of a generation.
type book struct {
	stored  map[persist.Off]map[uint64]int // words ever stored to a place, and the size of the block then
	counts  map[persist.Off]uint64         // words that must be there
	version uint64
}

func (b *book) clone() *book {
	c := &book{map[persist.Off]map[uint64]int{}, maps.Clone(b.counts), b.version}
	for off, words := range b.stored {
		c.stored[off] = maps.Clone(words)
	}
	return c
}

func openUser(m *crashsim.Machine, b *book) (*user, error) {
	r, err := persist.NewSimulated(m)
	if err != nil {
		return nil, err
	}
	u := &user{r: r, a: New(r), h: r.Handle(), book: b}
	if err := u.a.Scan(func(e *persist.CorruptError) error { return e }); err != nil {
		return nil, err
	}
	var odd error
	live := map[persist.Off]bool{}
	apply, err := u.a.Sweep(context.Background(), 1, true, func(_ Owner, off persist.Off, word uint64) (Verdict, uint64) {
		if word == 0 {
			return Dead, 0
		}
		size, _, _ := u.a.BlockSize(off)
		if b.stored[off][word] != size {
			odd = fmt.Errorf("A2: word %#x of a block of %d bytes at %#x was stored for one of %d", word, size, uint64(off), b.stored[off][word])
		}
		live[off] = true
		if want := b.counts[off]; want != 0 && want != word {
			odd = fmt.Errorf("block %#x counts with word %#x, has %#x", uint64(off), want, word)
		}
		return Live, word
	}, nil)
	if err == nil {
		err = odd
	}
	for off := range b.counts {
		if err == nil && !live[off] {
			err = fmt.Errorf("A1: block %#x counts and was not met", uint64(off))
		}
	}
	if err != nil {
		return nil, err
	}
	apply()
	return u, u.h.Fence()
}

// alloc takes a block, fills it with words that look like superblock headers, and
// has it count.
func (u *user) alloc(owner Owner, size int) error {
	off, have, err := u.a.Space(owner).Alloc(&u.c, size)
	if errors.Is(err, persist.ErrNoSpace) {
		return nil
	}
	if err != nil {
		return err
	}
	if w := u.book.counts[off]; w != 0 {
		return fmt.Errorf("A3: block %#x was handed out and is in use", uint64(off))
	}
	if w := u.r.Load(off); w != 0 {
		return fmt.Errorf("A3: block %#x was handed out with word %#x", uint64(off), w)
	}
	unitEnd := (off + unit - 1) &^ (unit - 1)
	for at := off + 8; at+8 <= off+persist.Off(size); at += 8 {
		if at < off+64 || at >= unitEnd && at%unit < 128 {
			u.r.Set(at, encodeHeader(2, 1, 0))
		}
	}
	u.serial++
	word := uint64(off)<<20 | u.serial<<8 | 1
	if u.book.stored[off] == nil {
		u.book.stored[off] = map[uint64]int{}
	}
	if cl := classOf(size); cl == runClass {
		have = (size+headerSize+unit-1)/unit*unit - headerSize
	}
	u.book.stored[off][word] = have
	u.book.version++
	u.r.Set(off, word)
	u.h.WriteBack(off, 8)
	if err := u.h.Fence(); err != nil {
		return err
	}
	u.book.counts[off] = word
	u.book.version++
	return nil
}

func (u *user) free(off persist.Off) error {
	delete(u.book.counts, off)
	u.book.version++
	u.r.Set(off, 0)
	u.h.WriteBack(off, 8)
	if err := u.h.Fence(); err != nil {
		return err
	}
	if u.serial%2 == 0 {
		u.a.Free(&u.c, off)
	} else {
		u.a.FreeBatch([]persist.Off{off})
	}
	return nil
}

// step does something at random.
func (u *user) step(rnd *rand.Rand) error {
	offs := slices.Sorted(maps.Keys(u.book.counts))
	switch n := rnd.IntN(10); {
	case n < 5 && len(offs) < 12:
		sizes := []int{20, 1000, 20 << 10, 36 << 10, 130 << 10, 300 << 10}
		return u.alloc(Owner(2+rnd.IntN(2)), sizes[rnd.IntN(len(sizes))])
	case n < 9 && len(offs) > 0:
		return u.free(offs[rnd.IntN(len(offs))])
	case n == 9:
		u.c.Flush()
	}
	return nil
}

// A1 to A3 at every crash, of the allocations and of what follows a recovery.
func TestCrashAllocations(t *testing.T) {
	for _, c := range []crashsim.Config{{Flavor: crashsim.Lines}, {Flavor: crashsim.Lines, Words: true}, {Flavor: crashsim.Redo}, {Flavor: crashsim.Process}} {
		t.Run(fmt.Sprint(c.Flavor, c.Words), func(t *testing.T) {
			t.Parallel()
			checked := 0
			for seed := *crashSeed; seed < *crashSeed+uint64(*crashHistories); seed++ {
				var b *book
				c.Size = 40 << 16
				rep, err := crashsim.Explore(crashsim.Options{
					Config: c, MaxImages: 8, Kills: true, Every: 0.4, Seed: seed, Depth: -1,
					Key: func() uint64 { return b.version },
				}, func(m *crashsim.Machine) error {
					b = &book{stored: map[persist.Off]map[uint64]int{}, counts: map[persist.Off]uint64{}}
					u, err := openUser(m, b)
					rnd := rand.New(rand.NewPCG(seed, 1))
					for range 30 {
						if err == nil {
							err = u.step(rnd)
						}
					}
					if n := len(m.Unannounced()); err == nil && n > 0 {
						err = fmt.Errorf("%d words were not announced", n)
					}
					return err
				}, func(m *crashsim.Machine, crash crashsim.Crash) error {
					b := b.clone()
					u, err := openUser(m, b)
					if err != nil || crash.Event.N%4 > 0 {
						return err
					}
					u.serial = 1000
					rnd := rand.New(rand.NewPCG(seed, uint64(crash.Event.N)))
					for range 8 {
						if err := u.step(rnd); err != nil {
							return fmt.Errorf("second generation: %w", err)
						}
					}
					for choice, image := range m.Images(3, rnd) {
						if _, err := openUser(image, b); err != nil {
							return fmt.Errorf("second crash, image %s: %w", choice, err)
						}
						image.Release()
					}
					return nil
				})
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				checked += rep.Checked
			}
			t.Logf("%d images", checked)
		})
	}
}
