package tidemark

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/recovery"
)

// Op is a running operation; see [Heap.Begin].
type Op = epoch.Op

// Heap is an open heap. Its methods may be called by any goroutine.
type Heap struct {
	opt    Options
	r      *persist.Region
	a      *alloc.Allocator
	clock  *epoch.System
	dir    directory
	result recovery.Result

	mu     sync.Mutex    // guards the following
	pins   int           // uses of the region outside operations
	closed bool          // Close has begun
	done   bool          // the region is unmapped
	idle   sync.Cond     // pins has dropped to 0
	ending chan struct{} // filled by the Close that runs
}

// Open opens the heap in directory dir, creating it where there is none; the
// parent of dir must exist. Errors match ErrLocked, ErrForeign, ErrFormat,
// ErrCorrupt, ErrNoSpace, ErrUnsupported or errors of the file system; then
// nothing has changed.
func Open(dir string, opt *Options) (*Heap, error) {
	return OpenContext(context.Background(), dir, opt)
}

// OpenContext is Open with a recovery that ends when ctx does. The heap can be
// opened again.
func OpenContext(ctx context.Context, dir string, opt *Options) (*Heap, error) {
	return openDir(ctx, dir, opt, false)
}

// OpenReadOnly opens a heap without changing it. What a crash left is recovered
// in private memory. It shares the lock with other readers, not with a writer.
func OpenReadOnly(dir string, opt *Options) (*Heap, error) {
	return openDir(context.Background(), dir, opt, true)
}

// OpenMem opens a new heap that lives in memory and is gone with the process.
func OpenMem(opt *Options) (*Heap, error) {
	max := uint64(256 << 20)
	if opt != nil && opt.MaxSize != 0 {
		max = opt.MaxSize
	}
	r, err := persist.NewMemory(max)
	if err != nil {
		return nil, err
	}
	return OpenRegion(context.Background(), r, opt)
}

func openDir(ctx context.Context, dir string, opt *Options, readOnly bool) (*Heap, error) {
	o := opt.defaults()
	r, err := persist.OpenDir(dir, persist.Config{
		Domain: o.Domain, MaxSize: o.MaxSize, ReadOnly: readOnly, LockTimeout: o.LockTimeout, Latency: o.EmulatedLatency,
		Warn: func(msg string, err error) { o.Logger.Warn("tidemark: "+msg, "err", err) },
	})
	if err != nil {
		return nil, err
	}
	opened := false
	defer func() {
		if !opened { // a panic of a callback included
			r.Abandon()
		}
	}()
	h, err := OpenRegion(ctx, r, &o)
	opened = err == nil
	return h, err
}

// OpenRegion opens the heap in a region, which it then owns: a simulated one,
// to test a structure on (see persist/crashsim). On an error the region stays
// the caller's.
func OpenRegion(ctx context.Context, r *persist.Region, opt *Options) (*Heap, error) {
	h := &Heap{opt: opt.defaults(), r: r, a: alloc.New(r), ending: make(chan struct{}, 1)}
	h.idle.L = &h.mu
	h.dir.init(h)
	ro := recovery.Options{Workers: h.opt.RecoveryWorkers, Policy: h.opt.Policy, Progress: h.opt.Progress, Damage: h.damage}
	var err error
	if h.result, err = recovery.Heap(ctx, r, h.a, ro, h.dir.load); err != nil {
		return nil, err
	}
	if h.opt.Strategy == Transient && h.result.Live > 0 {
		return nil, fmt.Errorf("%w: %s: the Transient strategy on a heap that holds data", ErrUnsupported, r.Path())
	}
	if err := r.Heal(); err != nil {
		return nil, err
	}
	now := h.result.Clock + 1
	h.opt.Logger.Info("tidemark: opened", "heap", r.Path(), "domain", r.Domain(), "clean", h.result.Clean,
		"epoch", now, "live", h.result.Live, "scrubbed", h.result.Scrubbed, "damaged", h.result.Damaged, "took", h.result.Elapsed)
	h.clock = epoch.New(r, epoch.Config{
		Start: now, Length: h.opt.EpochLength, Strategy: h.opt.Strategy, ReadOnly: r.ReadOnly(),
		Blocks: payload.Blocks{A: h.a}, NewLocal: payload.NewLocal,
	})
	h.a.Scavenge = func() bool {
		cached := h.clock.Flush(func(local any) bool { return local.(*alloc.Cache).Flush() > 0 })
		return h.a.Settle() || cached
	}
	return h, nil
}

func (h *Heap) damage(e *CorruptError) {
	h.opt.Logger.Warn("tidemark: damage skipped", "err", e)
	if h.opt.Damage != nil {
		h.opt.Damage(e)
	}
}

// Begin starts an operation, which the caller must end. All that structures do
// with it is atomic against failure. A stalled operation holds up the clock, so
// keep it short. On a closed heap the operation is dead: using it gives ErrClosed.
//
// Begin and End are for structures; programs mostly want [Heap.Do].
func (h *Heap) Begin() Op { return h.clock.Begin() }

// maxRestarts is how often the clock may overtake a long operation before Do
// makes the clock wait for it.
const maxRestarts = 4

// maxConflicts bounds how long Do retries against operations that do not end.
const maxConflicts = 10 * time.Second

// Do runs fn as one operation: it ends when fn returns nil, and is undone when
// fn returns an error or panics. Where fn fails with ErrOldSeesNew or
// ErrConflict, Do runs it again in a new operation. fn must use the operation it
// is given for all it changes in the heap, and must not Sync.
func (h *Heap) Do(fn func(Op) error) error {
	var since time.Time
	for n := 1; ; n++ {
		var err error
		if n <= maxRestarts {
			err = h.attempt(fn)
		} else {
			err = h.clock.Hold(func() error { return h.attempt(fn) })
		}
		switch {
		case errors.Is(err, ErrOldSeesNew):
		case errors.Is(err, ErrConflict):
			if since.IsZero() {
				since = time.Now()
			} else if time.Since(since) > maxConflicts {
				return err
			}
			time.Sleep(rand.N(time.Duration(min(n, 20)) * 100 * time.Microsecond))
		default:
			return err
		}
	}
}

func (h *Heap) attempt(fn func(Op) error) error {
	op := h.clock.Begin()
	if _, err := op.Slot(); err != nil {
		return err
	}
	defer op.Abort() // does nothing after End
	if err := fn(op); err != nil {
		return err
	}
	op.End()
	return nil
}

// Sync returns once every operation that ended before the call survives a crash
// of the heap's domain. Concurrent calls share the work. An operation that does
// not end holds it up: if ctx ends first the error says that the outcome is
// unknown. Do not call it inside an operation.
func (h *Heap) Sync(ctx context.Context) error {
	if err := h.pin(); err != nil {
		return err
	}
	defer h.unpin()
	return h.logged(h.clock.Sync(ctx))
}

// Tick advances the clock by one epoch, which makes durable what ended before
// the tick before it.
func (h *Heap) Tick(ctx context.Context) error {
	if err := h.pin(); err != nil {
		return err
	}
	defer h.unpin()
	return h.logged(h.clock.Tick(ctx))
}

// Reclaim makes the space of deleted payloads available again at once, where
// otherwise a few ticks of the clock do.
func (h *Heap) Reclaim(ctx context.Context) error {
	if err := h.pin(); err != nil {
		return err
	}
	defer h.unpin()
	for range 4 {
		if err := h.Tick(ctx); err != nil {
			return err
		}
	}
	h.a.Scavenge()
	return nil
}

func (h *Heap) logged(err error) error {
	if errors.Is(err, ErrDurability) {
		h.opt.Logger.Error("tidemark: durability lost", "err", err)
	}
	return err
}

// Epoch returns the current epoch, DurableEpoch the last one that a crash would
// keep. WaitDurable returns once epoch e is kept, without hurrying the clock.
func (h *Heap) Epoch() uint64        { return h.clock.Now() }
func (h *Heap) DurableEpoch() uint64 { return h.clock.Durable() }
func (h *Heap) WaitDurable(ctx context.Context, e uint64) error {
	return h.clock.WaitDurable(ctx, e)
}

// Err returns the error that ended durability, or nil.
func (h *Heap) Err() error { return h.clock.Err() }

// ReadOnly reports whether the heap was opened by OpenReadOnly.
func (h *Heap) ReadOnly() bool { return h.r.ReadOnly() }

// Options returns the options the heap was opened with, defaults filled in.
func (h *Heap) Options() Options { return h.opt }

// Path names the heap file, for messages.
func (h *Heap) Path() string { return h.r.Path() }

// Clock returns the epoch clock, for authors of nonblocking structures.
func (h *Heap) Clock() *epoch.System { return h.clock }

// pin keeps the region mapped for a use that is not an operation.
func (h *Heap) pin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.pins++
	return nil
}

func (h *Heap) unpin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pins--; h.pins == 0 {
		h.idle.Broadcast()
	}
}

// Close refuses new operations, waits for those that run, makes everything
// durable, and gives up the heap. Structures of the heap then return ErrClosed.
// A second Close returns nil.
func (h *Heap) Close() error { return h.CloseContext(context.Background()) }

// CloseContext is Close with a bound on the wait. If ctx ends first the heap
// stays open, refusing operations, and can be closed again.
func (h *Heap) CloseContext(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	select {
	case h.ending <- struct{}{}:
	default:
		select {
		case h.ending <- struct{}{}:
		case <-ctx.Done():
			return h.notClosed(ctx)
		}
	}
	defer func() { <-h.ending }()
	h.mu.Lock()
	done := h.done
	h.mu.Unlock()
	if done {
		return nil
	}
	err := h.clock.Close(ctx)
	if err != nil && !errors.Is(err, ErrDurability) {
		return err // not closed
	}
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.idle.Broadcast()
	})
	defer stop()
	h.mu.Lock()
	for h.pins > 0 && ctx.Err() == nil {
		h.idle.Wait()
	}
	if h.pins > 0 {
		h.mu.Unlock()
		return h.notClosed(ctx)
	}
	h.done = true
	h.mu.Unlock()
	if err == nil && !h.r.ReadOnly() && h.opt.Strategy != Transient {
		err = recovery.MarkClean(h.r, h.clock.Now())
	}
	err = errors.Join(err, h.r.Close())
	h.opt.Logger.Info("tidemark: closed", "heap", h.r.Path(), "err", err)
	return err
}

func (h *Heap) notClosed(ctx context.Context) error {
	return fmt.Errorf("tidemark: %s: still in use: %w", h.Path(), ctx.Err())
}
