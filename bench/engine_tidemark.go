package main

import (
	"context"
	"errors"
	"os"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// tidemarkMap is the hash map of this project, and what it costs without
// durability: the same code with the Transient strategy.
type tidemarkMap struct {
	h   *tidemark.Heap
	m   *hashmap.Map
	dir string
}

func openBuffered(s setup) (engine, error)  { return openMap(s, tidemark.PerEpoch) }
func openTransient(s setup) (engine, error) { return openMap(s, tidemark.Transient) }

func openMap(s setup, strategy tidemark.Strategy) (engine, error) {
	h, err := tidemark.Open(s.dir, &tidemark.Options{
		Domain: s.domain, Strategy: strategy, EpochLength: s.epoch, EmulatedLatency: s.latency,
	})
	if err != nil {
		return nil, err
	}
	m, err := hashmap.Open(h, "bench", nil)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &tidemarkMap{h, m, s.dir}, nil
}

func (t *tidemarkMap) get(dst, key []byte) ([]byte, bool, error) {
	dst, err := t.m.AppendGet(dst, key)
	if err == tidemark.ErrNotFound {
		return dst, false, nil
	}
	return dst, err == nil, err
}

func (t *tidemarkMap) insert(key, val []byte) (bool, error) { return t.m.PutIfAbsent(key, val) }
func (t *tidemarkMap) remove(key []byte) (bool, error)      { return t.m.Delete(key) }

func (t *tidemarkMap) settle() error {
	if t.h.Options().Strategy == tidemark.Transient {
		return nil
	}
	return t.h.Sync(context.Background())
}

// close removes the heap as well.
func (t *tidemarkMap) close() error {
	return errors.Join(t.h.Close(), os.RemoveAll(t.dir))
}
