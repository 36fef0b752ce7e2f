package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// runRecover times opening a heap and its map. Filling and every opening are
// processes of their own, so that each opening begins with nothing mapped. With
// -kill none of them closes the heap, so each opening is after a crash.
func runRecover(args []string) error {
	c := newCommon("recover")
	var o recoverOptions
	o.flags(c)
	workers := c.ints("workers", "1,2", "recovery goroutines, and GOMAXPROCS")
	rounds := c.Int("rounds", 5, "openings for each number of workers")
	if err := c.parse(args); err != nil {
		return err
	}
	if *rounds < 1 || o.n < 1 {
		return errors.New("-rounds and -n must be at least 1")
	}
	dir, cleanup, err := c.tempDir()
	if err != nil {
		return err
	}
	defer cleanup()
	rep := c.begin()
	o.heap = heapDir(dir, "heap")
	progress("filling with %d values of %d bytes", o.n, o.value)
	if err := o.child("recover-fill", 0, nil); err != nil {
		return err
	}
	times := make([][]opening, len(workers.vals))
	for round := range *rounds {
		for k := range workers.vals {
			if round%2 == 1 {
				k = len(workers.vals) - 1 - k
			}
			var t opening
			if err := o.child("recover-once", workers.vals[k], &t); err != nil {
				return err
			}
			times[k] = append(times[k], t)
		}
		progress("round %d of %d done", round+1, *rounds)
	}
	how := "closed"
	if o.kill {
		how = "not closed"
	}
	fmt.Printf("\n%d entries, values of %d bytes, the heap was %s. Seconds: median [min..max] of %d.\n", o.n, o.value, how, *rounds)
	t := newTable("workers", "total", "open", "of that, sweep", "rebuild", "M entries/s", "GB/s")
	var results []recoverResult
	var warn warnings
	for k, w := range workers.vals {
		r := recoverResult{Workers: w, Total: pick(times[k], opening.total), Open: pick(times[k], func(o opening) float64 { return o.Open }),
			Sweep: pick(times[k], func(o opening) float64 { return o.Sweep }), Rebuild: pick(times[k], func(o opening) float64 { return o.Rebuild })}
		r.Last = times[k][len(times[k])-1]
		results = append(results, r)
		warn.spread(fmt.Sprintf("%d workers", w), r.Total)
		t.row(fmt.Sprint(w), r.Total.String(), r.Open.String(), r.Sweep.String(), r.Rebuild.String(),
			fmt.Sprintf("%.2f", float64(o.n)/r.Total.Median/1e6), fmt.Sprintf("%.2f", float64(o.n)*float64(o.value+keySize)/r.Total.Median/1e9))
		if r.Last.Clean == o.kill {
			warn.add("%d workers: the heap was found clean=%v", w, r.Last.Clean)
		}
	}
	t.flush()
	warn.print()
	rep.Results = results
	return c.finish(rep)
}

type recoverOptions struct {
	n, value int
	kill     bool
	domain   tidemark.Domain
	heap     string
	workers  int
}

func (o *recoverOptions) flags(c *common) {
	c.IntVar(&o.n, "n", 1_000_000, "entries")
	c.IntVar(&o.value, "value", 1024, "bytes of a value")
	c.BoolVar(&o.kill, "kill", false, "end processes without closing the heap")
	c.Func("domain", "process (the default) or emulated", func(s string) (err error) {
		o.domain, err = parseDomain(s)
		return err
	})
}

type recoverResult struct {
	Workers int     `json:"workers"`
	Total   summary `json:"total"`
	Open    summary `json:"open"`
	Sweep   summary `json:"sweep"`
	Rebuild summary `json:"rebuild"`
	Last    opening `json:"last"`
}

// opening is what a child reports, in seconds.
type opening struct {
	Open     float64 `json:"open"`    // tidemark.Open
	Sweep    float64 `json:"sweep"`   // of that, recovery by its own account
	Rebuild  float64 `json:"rebuild"` // hashmap.Open, which checks what it reads
	Clean    bool    `json:"clean"`
	Scrubbed uint64  `json:"scrubbed"`
}

func (o opening) total() float64 { return o.Open + o.Rebuild }

func pick(times []opening, f func(opening) float64) summary {
	var v []float64
	for _, t := range times {
		v = append(v, f(t))
	}
	return summarize(v)
}

// child runs a workload in a process of its own and decodes what it prints.
func (o *recoverOptions) child(workload string, workers int, result any) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, workload, "-heap", o.heap, "-n", strconv.Itoa(o.n), "-value", strconv.Itoa(o.value),
		"-kill="+strconv.FormatBool(o.kill), "-domain", domainName(o.domain), "-workers", strconv.Itoa(workers))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.Env = os.Environ()
	if workers > 0 {
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+strconv.Itoa(workers))
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", workload, err)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(out.Bytes(), result)
}

func childOptions(name string, args []string) (*recoverOptions, error) {
	c := newCommon(name)
	var o recoverOptions
	o.flags(c)
	c.StringVar(&o.heap, "heap", "", "directory of the heap")
	c.IntVar(&o.workers, "workers", 0, "recovery goroutines")
	return &o, c.parse(args)
}

func (o *recoverOptions) open() (*tidemark.Heap, *hashmap.Map, opening, error) {
	begin := time.Now()
	h, err := tidemark.Open(o.heap, &tidemark.Options{Domain: o.domain, RecoveryWorkers: o.workers})
	if err != nil {
		return nil, nil, opening{}, err
	}
	opened := time.Now()
	m, err := hashmap.Open(h, "bench", nil)
	if err != nil {
		return nil, nil, opening{}, errors.Join(err, h.Close())
	}
	t := opening{Open: opened.Sub(begin).Seconds(), Rebuild: time.Since(opened).Seconds()}
	found := h.Metrics().Recovery
	t.Sweep, t.Clean, t.Scrubbed = found.Elapsed.Seconds(), found.Clean, found.Scrubbed
	return h, m, t, nil
}

// leave ends the use of a heap as -kill says: by itself, or by the process's end.
func (o *recoverOptions) leave(h *tidemark.Heap) error {
	if o.kill {
		os.Exit(0)
	}
	return h.Close()
}

func recoverFill(args []string) error {
	o, err := childOptions("recover-fill", args)
	if err != nil {
		return err
	}
	h, m, _, err := o.open()
	if err != nil {
		return err
	}
	// Preload chooses half of the keys, in random order.
	if err := preload(&tidemarkMap{h, m, o.heap}, uint64(2*o.n), o.value, 1); err != nil {
		return errors.Join(err, h.Close())
	}
	if err := h.Sync(context.Background()); err != nil {
		return err
	}
	return o.leave(h)
}

func recoverOnce(args []string) error {
	o, err := childOptions("recover-once", args)
	if err != nil {
		return err
	}
	h, m, t, err := o.open()
	if err != nil {
		return err
	}
	if m.Len() != o.n {
		return errors.Join(fmt.Errorf("recovered %d entries of %d", m.Len(), o.n), h.Close())
	}
	if err := json.NewEncoder(os.Stdout).Encode(t); err != nil {
		return err
	}
	return o.leave(h)
}
