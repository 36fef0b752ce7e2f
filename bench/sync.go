package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// runSync times single calls of Sync: with nothing to do, and after one Put.
// The time of the Put is not in it.
func runSync(args []string) error {
	c := newCommon("sync")
	domains := c.domains("process,emulated")
	n := c.Int("n", 2000, "calls of each kind in a round")
	rounds := c.Int("rounds", 5, "rounds that count, after one that does not")
	value := c.Int("value", 64, "bytes of a value")
	epoch := c.Duration("epoch", tidemark.DefaultEpochLength, "epoch length; negative: no clock besides Sync")
	latency := c.Duration("latency", 0, "added to each fence of the emulated domain")
	if err := c.parse(args); err != nil {
		return err
	}
	if *n < 1 || *rounds < 1 {
		return errors.New("-n and -rounds must be at least 1")
	}
	dir, cleanup, err := c.tempDir()
	if err != nil {
		return err
	}
	defer cleanup()
	rep := c.begin()
	var cases []*syncCase
	for _, d := range domains.vals {
		h, err := tidemark.Open(heapDir(dir, domainName(d)), &tidemark.Options{Domain: d, EpochLength: *epoch, EmulatedLatency: *latency})
		if err != nil {
			return err
		}
		defer h.Close()
		m, err := hashmap.Open(h, "bench", nil)
		if err != nil {
			return err
		}
		for _, dirty := range []bool{false, true} {
			cases = append(cases, &syncCase{h: h, m: m, val: make([]byte, *value), Domain: domainName(d), AfterPut: dirty})
		}
	}
	for round := range *rounds + 1 {
		for k := range cases {
			if round%2 == 1 {
				k = len(cases) - 1 - k
			}
			if err := cases[k].round(*n, round > 0); err != nil {
				return err
			}
		}
	}
	fmt.Printf("\nMicroseconds of one Sync: quantiles of %d calls; medians: median [min..max] of %d rounds.\n", *n**rounds, *rounds)
	t := newTable("domain", "after a Put", "medians", "median", "90 %", "99 %", "max")
	var warn warnings
	for _, s := range cases {
		s.Medians = summarize(s.medians)
		s.Median, s.P90, s.P99, s.Max = quantile(s.all, 0.5), quantile(s.all, 0.9), quantile(s.all, 0.99), quantile(s.all, 1)
		warn.spread(fmt.Sprintf("%s, after a Put: %v", s.Domain, s.AfterPut), s.Medians)
		t.row(s.Domain, fmt.Sprint(s.AfterPut), s.Medians.String(), us(s.Median), us(s.P90), us(s.P99), us(s.Max))
	}
	t.flush()
	warn.print()
	rep.Results = cases
	return c.finish(rep)
}

func us(v float64) string { return fmt.Sprintf("%.3g", v) }

type syncCase struct {
	h            *tidemark.Heap
	m            *hashmap.Map
	val          []byte
	all, medians []float64

	Domain   string  `json:"domain"`
	AfterPut bool    `json:"afterPut"`
	Medians  summary `json:"medians"` // of the rounds, in microseconds
	Median   float64 `json:"median"`
	P90      float64 `json:"p90"`
	P99      float64 `json:"p99"`
	Max      float64 `json:"max"`
}

func (s *syncCase) round(n int, counts bool) error {
	ctx := context.Background()
	took := make([]float64, 0, n)
	key := newKey()
	for i := range n {
		if s.AfterPut {
			key.set(uint64(i))
			if err := s.m.Put(key[:], s.val); err != nil {
				return err
			}
		}
		begin := time.Now()
		if err := s.h.Sync(ctx); err != nil {
			return err
		}
		took = append(took, float64(time.Since(begin).Nanoseconds())/1e3)
	}
	if counts {
		s.all = append(s.all, took...)
		s.medians = append(s.medians, quantile(took, 0.5))
	}
	return nil
}
