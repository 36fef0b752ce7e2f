package recovery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/internal/history"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
	"github.com/tidemark-db/tidemark/recovery"
)

var ctx = context.Background()

const owner = 2 // of the first structure of a heap

func openHeap(c context.Context, m *crashsim.Machine, o tidemark.Options) (*tidemark.Heap, error) {
	r, err := persist.NewSimulated(m)
	if err != nil {
		return nil, err
	}
	if o.EpochLength == 0 {
		o.EpochLength = tidemark.Manual
	}
	return tidemark.OpenRegion(c, r, &o)
}

func openSpace(h *tidemark.Heap) (*tidemark.Structure, error) { return h.OpenStructure("s", "k") }

// contents returns what structure "s" holds, each payload as often as it is handed out.
func contents(c context.Context, h *tidemark.Heap, workers int) (map[string]int, error) {
	s, err := openSpace(h)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var mu sync.Mutex
	all := map[string]int{}
	err = s.Rebuild(c, workers, func(_ int, it *recovery.Iterator) error {
		mu.Lock()
		defer mu.Unlock()
		all[string(it.Bytes())]++
		return nil
	})
	return all, err
}

// filled returns a machine with n payloads of mixed sizes, every third of which is
// deleted again, and what is left of them.
func filled(t testing.TB, flavor crashsim.Flavor, n int, end string) (*crashsim.Machine, map[string]int, map[string]payload.Ref) {
	m := crashsim.New(crashsim.Config{Size: 32 << 16, Flavor: flavor})
	h, err := openHeap(ctx, m, tidemark.Options{})
	require.NoError(t, err)
	s, err := openSpace(h)
	require.NoError(t, err)
	want, refs := map[string]int{}, map[string]payload.Ref{}
	for i := range n {
		v := fmt.Sprintf("%d.%0*d", i, []int{1, 50, 900, 9000, 40}[i%5], i)
		require.NoError(t, h.Do(func(op tidemark.Op) error {
			ref, err := s.Space().New(op, 5, []byte(v))
			refs[v] = ref
			return err
		}))
		want[v] = 1
		if i%40 == 39 {
			require.NoError(t, h.Tick(ctx))
		}
	}
	for i, v := range slices.Sorted(maps.Keys(want)) {
		if i%3 == 0 {
			require.NoError(t, h.Do(func(op tidemark.Op) error { return s.Space().Delete(op, refs[v]) }))
			delete(want, v)
			delete(refs, v)
		}
	}
	switch end {
	case "sync":
		require.NoError(t, h.Sync(ctx))
	case "close":
		require.NoError(t, h.Close())
	}
	return m, want, refs
}

func TestIteratorsHandOutEachPayloadOnce(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 300} {
		m, want, _ := filled(t, crashsim.Lines, n, "sync")
		for k := 1; k <= 8; k++ {
			image := m.Clone()
			h, err := openHeap(ctx, image, tidemark.Options{RecoveryWorkers: 9 - k})
			require.NoError(t, err)
			have, err := contents(ctx, h, k)
			require.NoError(t, err)
			require.Equal(t, want, have, "%d payloads, %d iterators", n, k)
			require.NoError(t, h.Close())
			image.Release()
		}
	}
}

func TestCleanCloseIsTold(t *testing.T) {
	for _, end := range []string{"sync", "close"} {
		m, want, _ := filled(t, crashsim.Redo, 20, end)
		for i := range 3 {
			h, err := openHeap(ctx, m.Clone(), tidemark.Options{})
			require.NoError(t, err)
			require.Equal(t, end == "close" || i > 0, h.Metrics().Recovery.Clean)
			have, err := contents(ctx, h, 2)
			require.NoError(t, err)
			require.Equal(t, want, have)
			if i > 0 {
				continue
			}
			m = m.Crash("old")
			h, err = openHeap(ctx, m, tidemark.Options{})
			require.NoError(t, err)
			require.NoError(t, h.Close())
		}
	}
	// What was opened and not closed is not clean, though nothing was done to it.
	m, _, _ := filled(t, crashsim.Lines, 20, "close")
	_, err := openHeap(ctx, m, tidemark.Options{})
	require.NoError(t, err)
	h, err := openHeap(ctx, m.Crash("old"), tidemark.Options{})
	require.NoError(t, err)
	require.False(t, h.Metrics().Recovery.Clean)
}

// flip inverts one bit of a copy of a machine.
func flip(m *crashsim.Machine, off persist.Off, bit int) *crashsim.Machine {
	c := m.Clone()
	c.Memory()[off+persist.Off(bit/8)] ^= 1 << (bit % 8)
	c.Wrote(off+persist.Off(bit/8), 1)
	return c
}

// damaged opens a heap with one bit flipped. Strict recovery gives an error, and
// leaves all as it is, or every payload; Salvage gives no payload that was not there.
func damaged(t *testing.T, m *crashsim.Machine, want map[string]int, off persist.Off, bit int, silent bool) {
	t.Helper()
	c := flip(m, off, bit)
	before := slices.Clone(c.Memory()[:c.Size()])
	h, err := openHeap(ctx, c, tidemark.Options{})
	opened := err == nil
	var have map[string]int
	if opened {
		have, err = contents(ctx, h, 2)
	}
	switch {
	case err != nil && !errors.Is(err, tidemark.ErrCorrupt):
		t.Fatalf("bit %d of %#x: %v", bit, uint64(off), err)
	case err != nil && !opened && !slices.Equal(before, c.Memory()[:c.Size()]):
		t.Fatalf("bit %d of %#x: a recovery that failed has changed something", bit, uint64(off))
	case err == nil && !maps.Equal(have, want):
		t.Fatalf("bit %d of %#x: %d payloads, not %d", bit, uint64(off), len(have), len(want))
	case err == nil && !silent:
		t.Fatalf("bit %d of %#x is not noticed", bit, uint64(off))
	}
	c.Release()

	c = flip(m, off, bit)
	told := 0
	h, err = openHeap(ctx, c, tidemark.Options{Policy: tidemark.Salvage, RecoveryWorkers: 1, Damage: func(*tidemark.CorruptError) { told++ }})
	if err != nil {
		require.ErrorIs(t, err, tidemark.ErrCorrupt)
		c.Release()
		return
	}
	if have, err = contents(ctx, h, 1); err != nil {
		require.ErrorIs(t, err, tidemark.ErrCorrupt)
	}
	for v, n := range have {
		if n != want[v] {
			t.Fatalf("bit %d of %#x: salvaged %.20q %d times", bit, uint64(off), v, n)
		}
	}
	if len(have) < len(want) && told == 0 {
		t.Fatalf("bit %d of %#x: %d of %d payloads, and no damage told", bit, uint64(off), len(have), len(want))
	}
	// What is salvaged goes on working, and stays.
	s, err := openSpace(h)
	require.NoError(t, err)
	for i := range 5 {
		err := h.Do(func(op tidemark.Op) error {
			_, err := s.Space().New(op, 5, make([]byte, 10<<i))
			return err
		})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	after, err := contents(ctx, h, 1)
	require.NoError(t, err)
	for v := range have {
		if after[v] != 1 {
			t.Fatalf("bit %d of %#x: %.20q was salvaged and then lost", bit, uint64(off), v)
		}
	}
	c.Release()
}

func TestEveryBitOfAPayload(t *testing.T) {
	m, want, refs := filled(t, crashsim.Lines, 60, "sync")
	values := slices.Sorted(maps.Keys(refs))
	short := values[slices.IndexFunc(values, func(v string) bool { return len(v) < 100 && len(v) > 40 })]
	for bit := range 64 { // control word
		damaged(t, m, want, persist.Off(refs[short]), bit, false)
	}
	for bit := range 64 { // size, tag, checksum
		damaged(t, m, want, persist.Off(refs[short])+8, bit, false)
	}
	for bit := 0; bit < 8*len(short); bit += 3 {
		damaged(t, m, want, persist.Off(refs[short])+16, bit, false)
	}
}

func TestEveryBitOfASuperblockHeader(t *testing.T) {
	m, want, refs := filled(t, crashsim.Lines, 60, "sync")
	seen := map[persist.Off]bool{}
	for _, ref := range refs {
		for bit := range 64 {
			if sb := persist.Off(ref) &^ (persist.UnitSize - 1); !seen[sb] {
				damaged(t, m, want, sb, bit, false)
			}
		}
		seen[persist.Off(ref)&^(persist.UnitSize-1)] = true
	}
	require.Greater(t, len(seen), 2)
}

func TestEveryBitOfTheClock(t *testing.T) {
	m, want, _ := filled(t, crashsim.Lines, 20, "sync")
	for bit := range 64 {
		damaged(t, m, want, persist.ClockOff, bit, false)
	}
	for bit := range 64 { // the clean word is only a hint
		damaged(t, m, want, persist.CleanOff, bit, true)
	}
}

// A recovery that a crash interrupts again and again, each time a little later,
// ends where one that is left alone does.
func TestRecoveryInterruptedAgainAndAgain(t *testing.T) {
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo, crashsim.Process} {
		for _, choice := range []string{"old", "new", "kill"} {
			t.Run(fmt.Sprint(flavor, " ", choice), func(t *testing.T) {
				m, _, refs := filled(t, flavor, 50, "sync")
				// Something of every epoch that does not count, on media already.
				h, err := openHeap(ctx, m, tidemark.Options{})
				require.NoError(t, err)
				s, err := openSpace(h)
				require.NoError(t, err)
				require.NoError(t, h.Sync(ctx))
				want, err := func() (map[string]int, error) {
					h, err := openHeap(ctx, m.Crash("new"), tidemark.Options{})
					if err != nil {
						return nil, err
					}
					return contents(ctx, h, 1)
				}()
				require.NoError(t, err)
				values := slices.Sorted(maps.Keys(refs))
				for i := range 2 {
					require.NoError(t, h.Do(func(op tidemark.Op) error {
						ref, err := s.Space().New(op, 5, []byte("never"))
						return errors.Join(err, s.Space().Delete(op, refs[values[2*i]]), s.Space().Delete(op, refs[values[2*i+1]]), s.Space().Delete(op, ref),
							func() error { _, err := s.Space().New(op, 5, []byte("never either")); return err }())
					}))
					if i == 0 {
						require.NoError(t, h.Tick(ctx))
					}
				}
				m = m.Crash("new")
				for n := 1; n <= 20; n++ {
					var next *crashsim.Machine
					events := 0
					m.OnEvent(func(crashsim.Event) {
						if events++; events == n*5 {
							next = m.Crash(choice)
						}
					})
					_, err := openHeap(ctx, m, tidemark.Options{RecoveryWorkers: 1})
					require.NoError(t, err)
					if next == nil { // it was over by then
						break
					}
					m = next
				}
				h, err = openHeap(ctx, m, tidemark.Options{})
				require.NoError(t, err)
				have, err := contents(ctx, h, 3)
				require.NoError(t, err)
				require.Equal(t, len(want), len(have))
				require.Equal(t, want, have)
			})
		}
	}
}

// A recovery that is cancelled returns soon; it has changed nothing, and can be
// done again.
func TestRecoveryIsCancelled(t *testing.T) {
	m, want, _ := filled(t, crashsim.Lines, 300, "sync")
	before := slices.Clone(m.Memory()[:m.Size()])
	c, cancel := context.WithCancel(ctx)
	cancel()
	_, err := openHeap(c, m, tidemark.Options{})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, slices.Equal(before, m.Memory()[:m.Size()]))

	h, err := openHeap(ctx, m, tidemark.Options{})
	require.NoError(t, err)
	_, err = contents(c, h, 3)
	require.ErrorIs(t, err, context.Canceled)
	for _, after := range []int{1, 20} {
		c, cancel := context.WithCancel(ctx)
		s, err := openSpace(h)
		require.NoError(t, err)
		n := 0
		err = s.Rebuild(c, 1, func(int, *recovery.Iterator) error {
			if n++; n == after {
				cancel()
			}
			return nil
		})
		cancel()
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, n, len(want))
		require.NoError(t, s.Close())
	}
	have, err := contents(ctx, h, 3)
	require.NoError(t, err)
	require.Equal(t, want, have)
}

func TestErrorsAndPanicsOfTheCallerEndARebuild(t *testing.T) {
	m, _, _ := filled(t, crashsim.Lines, 100, "sync")
	h, err := openHeap(ctx, m, tidemark.Options{})
	require.NoError(t, err)
	s, err := openSpace(h)
	require.NoError(t, err)
	boom := errors.New("boom")
	for k := 1; k <= 4; k += 3 {
		require.ErrorIs(t, s.Rebuild(ctx, k, func(int, *recovery.Iterator) error { return boom }), boom)
		require.PanicsWithValue(t, boom, func() {
			s.Rebuild(ctx, k, func(int, *recovery.Iterator) error { panic(boom) })
		})
		err := s.Rebuild(ctx, k, func(_ int, it *recovery.Iterator) error { return it.Damaged("X: it does not please") })
		var bad *tidemark.CorruptError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "s", bad.Structure)
		require.NotZero(t, bad.Off)
	}
}

// Progress goes up, and ends at the total.
func TestProgressGoesUp(t *testing.T) {
	m, _, _ := filled(t, crashsim.Lines, 200, "sync")
	var mu sync.Mutex
	told := map[string][]tidemark.Progress{}
	h, err := openHeap(ctx, m, tidemark.Options{RecoveryWorkers: 2, Progress: func(p tidemark.Progress) {
		mu.Lock()
		defer mu.Unlock()
		told[p.Phase] = append(told[p.Phase], p)
	}})
	require.NoError(t, err)
	s, err := openSpace(h)
	require.NoError(t, err)
	require.NoError(t, s.Rebuild(ctx, 1, func(int, *recovery.Iterator) error {
		time.Sleep(4 * time.Millisecond)
		return nil
	}))
	require.Greater(t, len(told["rebuild"]), 2)
	for phase, list := range told {
		last := uint64(0)
		for _, p := range list {
			require.GreaterOrEqual(t, p.Done, last, phase)
			require.LessOrEqual(t, p.Done, p.Total, phase)
			last = p.Done
		}
		require.Equal(t, list[len(list)-1].Total, last, phase)
		require.Equal(t, list[0].Total, last, phase)
	}
}

// A device that fails in the middle takes nothing with it that was acknowledged,
// and nothing is acknowledged any more.
func TestDeviceFailure(t *testing.T) {
	device := errors.New("device is gone")
	for _, flavor := range []crashsim.Flavor{crashsim.Lines, crashsim.Redo} {
		for n := range 6 {
			fences, armed := 0, false
			m := crashsim.New(crashsim.Config{Flavor: flavor, Size: 24 << 16, FenceError: func(int) error {
				if armed {
					if fences++; fences > n {
						return device
					}
				}
				return nil
			}})
			h, err := openHeap(ctx, m, tidemark.Options{})
			require.NoError(t, err)
			s, err := openSpace(h)
			require.NoError(t, err)
			require.NoError(t, h.Sync(ctx))
			o := history.New(nil)
			armed = true
			for i := range 20 {
				size := 10
				if i%3 == 2 {
					size = 70 << 10 // a run: fences of its own
				}
				v := fmt.Sprintf("%d.%0*d", i, size, i)
				e := h.Epoch()
				err := h.Do(func(op tidemark.Op) error {
					_, err := s.Space().New(op, 5, []byte(v))
					return err
				})
				if err == nil {
					o.Ended(e, history.Change{Key: v})
				} else if !errors.Is(err, device) {
					t.Fatal(err)
				}
				if err := h.Sync(ctx); err == nil {
					o.Acked(h.DurableEpoch())
				} else {
					require.ErrorIs(t, err, tidemark.ErrDurability)
					require.ErrorIs(t, err, device)
				}
			}
			require.ErrorIs(t, h.Err(), tidemark.ErrDurability)
			err = h.Do(func(op tidemark.Op) error { _, err := s.Space().New(op, 5, []byte("late")); return err })
			require.ErrorIs(t, err, tidemark.ErrDurability)
			require.ErrorIs(t, h.WaitDurable(ctx, h.Epoch()), tidemark.ErrDurability)
			armed = false
			for choice, image := range m.Images(50, nil) {
				r, err := openHeap(ctx, image, tidemark.Options{})
				require.NoError(t, err, choice)
				have, err := contents(ctx, r, 1)
				require.NoError(t, err, choice)
				state := map[string]string{}
				for v, n := range have {
					require.Equal(t, 1, n)
					state[v] = ""
				}
				require.NoError(t, o.Check(r.Metrics().Recovery.Boundary, state), choice)
				image.Release()
			}
		}
	}
}

// Right after a recovery every size class can be filled to the brim without
// touching what lives, and as often as one likes: no space gets lost.
func TestFreeSpaceAfterRecoveryIsFree(t *testing.T) {
	m, want, _ := filled(t, crashsim.Lines, 300, "sync")
	for _, size := range []int{1, 100, 1000, 20 << 10, 36 << 10, 100 << 10} {
		image := m.Clone()
		fill := bytes.Repeat([]byte{0xee}, size)
		first := 0
		for round := range 3 {
			h, err := openHeap(ctx, image, tidemark.Options{})
			require.NoError(t, err)
			s, err := openSpace(h)
			require.NoError(t, err)
			var refs []payload.Ref
			for err == nil {
				err = h.Do(func(op tidemark.Op) error {
					ref, err := s.Space().New(op, 5, fill)
					if err == nil {
						refs = append(refs, ref)
					}
					return err
				})
			}
			require.ErrorIs(t, err, tidemark.ErrNoSpace)
			if round == 0 {
				first = len(refs)
				require.Greater(t, first*size, 1000)
			}
			require.Equal(t, first, len(refs), "blocks for %d bytes in round %d", size, round)
			require.NoError(t, h.Sync(ctx))
			require.NoError(t, s.Close())
			have, err := contents(ctx, h, 4)
			require.NoError(t, err)
			require.Equal(t, len(refs), have[string(fill)])
			delete(have, string(fill))
			require.Equal(t, want, have)
			require.NoError(t, h.Do(func(op tidemark.Op) error {
				for _, ref := range refs {
					if err := s.Space().Delete(op, ref); err != nil {
						return err
					}
				}
				return nil
			}))
			if round == 0 {
				require.NoError(t, h.Sync(ctx))
				image = image.Crash("old")
			} else {
				require.NoError(t, h.Close())
			}
		}
		image.Release()
	}
}

// FuzzBlock puts arbitrary bytes where a payload's block is.
func FuzzBlock(f *testing.F) {
	m, want, refs := filled(f, crashsim.Lines, 12, "sync")
	at := persist.Off(refs[slices.Sorted(maps.Keys(refs))[0]])
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add(make([]byte, 100))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("\x21\x00\x00\x00\x00\x00\x00\x21\xfe\xff\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := m.Clone()
		defer c.Release()
		var live [8]byte
		for i := range 8 { // a control word that makes the rest count
			live[i] = c.Memory()[int(at)+i]
		}
		for _, word := range [][]byte{live[:], b[:min(len(b), 8)]} {
			n := copy(c.Memory()[at:at+1000], b)
			copy(c.Memory()[at:], word)
			c.Wrote(at, max(n, 8))
			h, err := openHeap(ctx, c, tidemark.Options{Policy: tidemark.Salvage, RecoveryWorkers: 1})
			if err != nil {
				t.Fatal(err)
			}
			have, err := contents(ctx, h, 1)
			if err != nil {
				t.Fatal(err)
			}
			odd := 0
			for v := range have {
				if want[v] == 0 {
					odd++
				}
			}
			if odd > 1 {
				t.Fatalf("%d payloads that were never there", odd)
			}
		}
		// The check alone, as if the block were at the end of the region.
		r, err := persist.NewMemory(2 << 16)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Grow(2 << 16); err != nil {
			t.Fatal(err)
		}
		s := payload.NewSpace(r, alloc.New(r), owner, true)
		for _, size := range []int{32, 64, 1024} {
			end := r.Bytes(2<<16-persist.Off(size), size)
			clear(end)
			copy(end, b)
			s.Check(payload.Ref(2<<16-size), size)
		}
	})
}
