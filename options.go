package tidemark

import (
	"log/slog"
	"runtime"
	"time"

	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/recovery"
)

// Domain names the failure that durable data survives.
type Domain = persist.Domain

// See persist for what each costs.
const (
	// ProcessCrash, the default: the end of the process, however it comes. Not
	// a power loss.
	ProcessCrash = persist.ProcessCrash
	// PowerLoss: a power loss as well. Needs a file system that grants MAP_SYNC.
	PowerLoss = persist.PowerLoss
	// Emulated: executes PowerLoss's instructions on ordinary memory, to measure.
	Emulated = persist.Emulated
)

// Strategy says who writes payloads back, and when.
type Strategy = epoch.Strategy

const (
	PerEpoch  = epoch.PerEpoch
	Buffered  = epoch.Buffered
	Direct    = epoch.Direct
	Transient = epoch.Transient
)

// Policy says what recovery does about damaged media.
type Policy = recovery.Policy

const (
	Strict  = recovery.Strict
	Salvage = recovery.Salvage
)

// Progress is what Options.Progress is told.
type Progress = recovery.Progress

// DefaultEpochLength is the time between two ticks of the clock.
const DefaultEpochLength = 10 * time.Millisecond

// Manual, as an epoch length, leaves the clock to Heap.Tick and Heap.Sync.
const Manual time.Duration = -1

// Options configure a heap. The zero value, and nil, work.
type Options struct {
	Domain      Domain
	EpochLength time.Duration // 0 means DefaultEpochLength; Manual: only Tick and Sync
	Strategy    Strategy
	MaxSize     uint64 // the heap file grows up to it; 0 means 1 TiB (in memory: 256 MiB)

	RecoveryWorkers int    // goroutines of a recovery; 0 means GOMAXPROCS
	Policy          Policy // about damage met by a recovery
	Progress        func(Progress)
	Damage          func(*CorruptError) // told of each damage under Salvage; may be called by several goroutines

	LockTimeout time.Duration // how long to wait for another opener; 0 fails at once with ErrLocked
	Logger      *slog.Logger  // nil: no logging

	EmulatedLatency time.Duration // added to each fence of the Emulated domain
}

func (o *Options) defaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.EpochLength == 0 {
		v.EpochLength = DefaultEpochLength
	}
	if v.RecoveryWorkers <= 0 {
		v.RecoveryWorkers = runtime.GOMAXPROCS(0)
	}
	if v.Logger == nil {
		v.Logger = slog.New(slog.DiscardHandler)
	}
	return v
}
