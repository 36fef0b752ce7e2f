package tidemark

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/recovery"
)

// VerifyReport says what Verify looked at and found.
type VerifyReport struct {
	Superblocks int             `json:"superblocks"`
	Payloads    uint64          `json:"payloads"` // live ones, whose contents were checked
	Bytes       uint64          `json:"bytes"`    // of superblocks read
	Problems    []*CorruptError `json:"problems"`
}

// Verify reads the whole heap in dir without changing it: header copies, clock,
// superblock headers, control words, and the checksum of every live payload.
// Damage is reported, not returned as an error. Errors say why it could not run;
// they match ErrLocked, ErrForeign and so on, and also ErrCorrupt where the
// header or the clock itself cannot be read.
func Verify(ctx context.Context, dir string, opt *Options) (VerifyReport, error) {
	var rep VerifyReport
	var mu sync.Mutex
	o := opt.defaults()
	o.Policy = Salvage
	o.Damage = func(e *CorruptError) {
		mu.Lock()
		defer mu.Unlock()
		rep.Problems = append(rep.Problems, e)
	}
	h, err := openDir(ctx, dir, &o, true)
	if err != nil {
		return rep, err
	}
	defer h.Close()
	if err := h.r.HeaderDamage(); err != nil {
		bad := &CorruptError{File: h.Path(), Rule: err.Error()}
		errors.As(err, &bad)
		bad.Rule = "P5: one header copy: " + bad.Rule
		o.Damage(bad)
	}
	if _, ok := h.r.BootID(); !ok && h.result.Clock >= recovery.FirstEpoch {
		o.Damage(&CorruptError{File: h.Path(), Off: persist.BootOff, Rule: "P5: boot id: wrong checksum"})
	}
	if _, ok := persist.Unseal(h.r.Load(persist.CleanOff)); !ok {
		o.Damage(&CorruptError{File: h.Path(), Off: persist.CleanOff, Rule: "P5: clean word: wrong check byte"})
	}
	if off := h.r.Reserved(); off != 0 {
		o.Damage(&CorruptError{File: h.Path(), Off: off, Rule: "P5: reserved bytes of the header are not zero"})
	}
	for owner, name := range h.dir.owners() {
		sbs := h.a.Superblocks(owner)
		rep.Superblocks += len(sbs)
		for _, sb := range sbs {
			rep.Bytes += uint64(sb.BlockSize * sb.Count)
		}
		space := payload.NewSpace(h.r, h.a, owner, true)
		its := recovery.Iterators(ctx, h.r, h.a, space, owner, name, o.RecoveryWorkers, recovery.Options{Policy: Salvage, Damage: o.Damage, Progress: o.Progress})
		counts := make([]uint64, len(its))
		if err := recovery.Each(its, func(w int, _ *recovery.Iterator) error { counts[w]++; return nil }); err != nil {
			return rep, err
		}
		for _, n := range counts {
			rep.Payloads += n
		}
	}
	return rep, nil
}

// OpenReadOnlyContext is OpenReadOnly with a recovery that ends when ctx does.
func OpenReadOnlyContext(ctx context.Context, dir string, opt *Options) (*Heap, error) {
	return openDir(ctx, dir, opt, true)
}

// Inspect opens a structure as what it is, for tools that look at payloads and
// know neither its kind nor its types. The heap must have been opened read-only:
// the error matches ErrUnsupported otherwise, and else as OpenStructure's does.
func (h *Heap) Inspect(name string) (*Structure, error) {
	if !h.ReadOnly() {
		return nil, fmt.Errorf("%w: %s: inspecting a heap that is open for writing", ErrUnsupported, h.Path())
	}
	h.dir.mu.Lock()
	e := h.dir.entries[name]
	h.dir.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("%w: %s: structure %q", ErrNotFound, h.Path(), name)
	}
	return h.OpenStructure(name, e.Kind, e.types...)
}
