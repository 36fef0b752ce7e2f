package main

import (
	"fmt"
	"time"

	"github.com/tidemark-db/tidemark"
)

// engine is a map from byte slices to byte slices that a workload can drive, by
// any number of goroutines. An engine keeps none of the slices it is given.
type engine interface {
	// get appends the value of key to dst, and reports whether it was there.
	get(dst, key []byte) ([]byte, bool, error)
	// insert adds key unless it is there, and reports whether it did.
	insert(key, val []byte) (bool, error)
	// remove reports whether key was there.
	remove(key []byte) (bool, error)
	// settle completes what goes on in the background.
	settle() error
	close() error
}

// setup is what an engine is opened with.
type setup struct {
	dir     string // does not exist yet
	domain  tidemark.Domain
	epoch   time.Duration
	latency time.Duration // of a fence, Emulated only
	entries int           // expected
}

type engineKind struct {
	name    string
	durable bool // it depends on the domain
	open    func(setup) (engine, error)
}

var engines = []engineKind{
	{"buffered", true, openBuffered},
	{"transient", false, openTransient},
	{"xsync", false, openXsync},
	{"none", false, openNone},
}

func findEngine(name string) (engineKind, error) {
	for _, k := range engines {
		if k.name == name {
			return k, nil
		}
	}
	return engineKind{}, fmt.Errorf("no engine %q", name)
}

// none does nothing: what is left is the cost of the load itself.
type none struct{}

func openNone(setup) (engine, error) { return none{}, nil }

func (none) get(dst, _ []byte) ([]byte, bool, error) { return dst, false, nil }
func (none) insert(_, _ []byte) (bool, error)        { return false, nil }
func (none) remove([]byte) (bool, error)             { return false, nil }
func (none) settle() error                           { return nil }
func (none) close() error                            { return nil }
