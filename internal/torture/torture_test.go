//go:build unix

package torture

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark"
)

var (
	kills   = flag.Int("kills", 5, "how often to kill the process under load")
	seed    = flag.Uint64("seed", 0, "of the operations and the configurations, though not of the moments of the kills; 0 means a random one")
	scratch = flag.String("scratch", "", "directory for the heaps; the default is that for temporary files")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childVar); text != "" {
		childMain(text)
	}
	os.Exit(m.Run())
}

func TestKill(t *testing.T) {
	h := newHarness(t)
	for i := 0; h.killed < *kills; i++ {
		if i > 0 && i%40 == 0 {
			h.newHeap()
		}
		if err := h.round(i); err != nil {
			h.fail(err)
		}
	}
	h.summary()
}

// A harness that cannot fail shows nothing: a child that acknowledges operations
// before they are durable must be caught.
func TestCaught(t *testing.T) {
	h := newHarness(t)
	h.lie = true
	for i := range 20 {
		if err := h.round(i); err != nil {
			if !strings.Contains(err.Error(), "T1: ") {
				h.fail(err)
			}
			t.Logf("caught after %d kills: %.200v ...", h.killed, err)
			return
		}
	}
	h.fail(fmt.Errorf("acknowledging before Sync was not noticed in %d kills", h.killed))
}

// harness is the parent's side of the rounds.
type harness struct {
	t      *testing.T
	rng    *rand.Rand
	seed   uint64
	dir    string // of all there is
	heap   string
	board  string
	heaps  int
	lie    bool
	mutant string
	found  *snapshot // what the heap held last

	killed     int
	moments    [closing + 1]int // of the kills, by phase
	closed     int              // rounds that ended with a Close
	losses     []uint64         // operations taken back by each kill under load
	recoveries []time.Duration
	payloads   uint64 // of the last recovery
	done       uint64
	acked      uint64
	largest    int64 // heap file
}

func newHarness(t *testing.T) *harness {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	dir, err := os.MkdirTemp(*scratch, "tidemark-torture-")
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, rng: rand.New(rand.NewPCG(s, 0)), seed: s, dir: dir, board: filepath.Join(dir, "board")}
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(dir)
		}
	})
	h.newHeap()
	return h
}

func (h *harness) newHeap() {
	if h.heap != "" {
		os.RemoveAll(h.heap)
	}
	h.heaps++
	h.heap = filepath.Join(h.dir, fmt.Sprint("heap", h.heaps))
	h.found = &snapshot{}
}

func (h *harness) fail(err error) {
	h.t.Helper()
	h.t.Fatalf("seed %d, after %d kills, heap kept in %s:\n%v", h.seed, h.killed, h.heap, err)
}

func pick[T any](rng *rand.Rand, xs ...T) T { return xs[rng.IntN(len(xs))] }

func (h *harness) config(i int) *config {
	cfg := &config{
		Seed: h.seed, Round: i + 1, Heap: h.heap, Board: h.board, Expect: h.found.sum(), Lie: h.lie, Mutant: h.mutant,
		Domain:    pick(h.rng, tidemark.ProcessCrash, tidemark.Emulated),
		Strategy:  pick(h.rng, tidemark.PerEpoch, tidemark.Buffered, tidemark.Direct),
		Epoch:     time.Duration(float64(100*time.Microsecond) * math.Pow(100, h.rng.Float64())).Round(10 * time.Microsecond),
		Procs:     pick(h.rng, 1, 2, 8),
		Workers:   4 + h.rng.IntN(5),
		Recoverer: 1 + h.rng.IntN(4),
		MaxSize:   pick(h.rng, 64, 1000, 8<<10, 64<<10),
	}
	if h.lie {
		cfg.Epoch = 50 * time.Millisecond
	}
	return cfg
}

// The moments of kills.
type plan int

const (
	underLoad plan = iota
	inRecovery
	atStart
	atClose
)

// round starts a child, kills it, and checks what is left.
func (h *harness) round(i int) error {
	cfg := h.config(i)
	when := underLoad
	if i > 0 && !h.lie {
		when = pick(h.rng, underLoad, underLoad, underLoad, underLoad, underLoad, inRecovery, inRecovery, atStart, atClose)
	}
	os.Remove(h.board)
	b, unmap, err := mapBoard(h.board)
	if err != nil {
		return err
	}
	defer unmap()
	if err := h.runChild(cfg, b, when); err != nil {
		return fmt.Errorf("%v: %w", cfg, err)
	}
	after, err := inspect(h.heap)
	if err != nil {
		return fmt.Errorf("%v: %w", cfg, err)
	}
	l, err := check(cfg, b, h.found, after)
	if err != nil {
		return fmt.Errorf("%v: %w", cfg, err)
	}
	h.found = after
	h.done += l.done
	h.acked += l.acked
	if b.phase.Load() >= loading {
		h.losses = append(h.losses, l.lost)
	}
	if d := b.recovery.Load(); d > 0 {
		h.recoveries = append(h.recoveries, time.Duration(d))
		h.payloads = b.payloads.Load()
	}
	if fi, err := os.Stat(filepath.Join(h.heap, "heap")); err == nil {
		h.largest = max(h.largest, fi.Size())
	}
	return nil
}

// patience bounds the wait for a child's phase.
const patience = 2 * time.Minute

// runChild runs a child until it is killed, or has closed the heap.
func (h *harness) runChild(cfg *config, b *board, when plan) error {
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+string(text))
	cmd.Stderr = &stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	reach := func(phase uint64) (over bool) {
		for start := time.Now(); b.phase.Load() < phase; time.Sleep(20 * time.Microsecond) {
			if len(ended) > 0 {
				return true
			}
			if time.Since(start) > patience {
				cmd.Process.Signal(syscall.SIGQUIT) // has it print its goroutines
				return true
			}
		}
		return false
	}
	wait := func(most time.Duration) { time.Sleep(time.Duration(h.rng.Int64N(int64(most)))) }
	over := false
	switch when {
	case underLoad:
		if over = reach(loading); !over {
			most := time.Duration(float64(2*time.Millisecond) * math.Pow(500, h.rng.Float64()))
			if h.lie {
				most = 500 * time.Millisecond
			}
			wait(most)
		}
	case inRecovery:
		last := 5 * time.Millisecond
		if n := len(h.recoveries); n > 0 {
			last = h.recoveries[n-1]
		}
		if over = reach(opening); !over {
			wait(last + last/4)
		}
	case atStart:
		wait(20 * time.Millisecond)
	case atClose:
		if over = reach(loading); !over {
			wait(100 * time.Millisecond)
			b.stop.Store(1)
			if over = reach(closing); !over {
				wait(time.Millisecond)
			}
		}
	}
	if !over {
		cmd.Process.Kill()
	}
	err = <-ended
	if stderr.Len() > 0 {
		return fmt.Errorf("%v\n%s", err, &stderr)
	}
	switch status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		h.killed++
		h.moments[b.phase.Load()]++
	case err == nil && when == atClose:
		h.closed++
	default:
		return fmt.Errorf("the child ended by itself: %v", cmd.ProcessState)
	}
	return nil
}

func (h *harness) summary() {
	m := h.moments
	h.t.Logf("seed %d: %d kills: %d at start, %d in recovery, %d in the check after it, %d under load, %d in Close; %d rounds ended with a Close; heaps: %d",
		h.seed, h.killed, m[starting], m[opening], m[checking], m[loading], m[closing], h.closed, h.heaps)
	h.t.Logf("%d operations returned, of which %d were covered by Sync when the process ended", h.done, h.acked)
	slices.Sort(h.losses)
	if n := len(h.losses); n > 0 {
		h.t.Logf("operations taken back by a crash under load: min %d, median %d, max %d", h.losses[0], h.losses[n/2], h.losses[n-1])
	}
	slices.Sort(h.recoveries)
	if n := len(h.recoveries); n > 0 {
		r := h.recoveries
		h.t.Logf("recovery: min %v, median %v, max %v; %d payloads in the last; largest heap file %d MiB", r[0], r[n/2], r[n-1], h.payloads, h.largest>>20)
	}
}
