package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is what -json writes.
type report struct {
	Workload string            `json:"workload"`
	Machine  machine           `json:"machine"`
	Flags    map[string]string `json:"flags"`
	Results  any               `json:"results"`
}

// begin prints the facts of a run.
func (c *common) begin() *report {
	r := &report{Workload: c.Name(), Machine: thisMachine(), Flags: c.values()}
	fmt.Println(r.Machine)
	return r
}

func (c *common) finish(r *report) error {
	if c.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.json, append(b, '\n'), 0o666)
}

// summary condenses the rounds of one measurement.
type summary struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Rounds []float64 `json:"rounds"`
}

func summarize(rounds []float64) summary {
	s := summary{Rounds: rounds}
	if len(rounds) > 0 {
		s.Median, s.Min, s.Max = quantile(rounds, 0.5), slices.Min(rounds), slices.Max(rounds)
	}
	return s
}

// quantile returns the q-th quantile; between two values, their mean.
func quantile(vals []float64, q float64) float64 {
	v := slices.Sorted(slices.Values(vals))
	at := q * float64(len(v)-1)
	lo := int(at)
	if at == float64(lo) {
		return v[lo]
	}
	return (v[lo] + v[lo+1]) / 2
}

// spreadLimit is max/min of rounds from which a figure is not to be trusted.
const spreadLimit = 1.25

func (s summary) noisy() bool { return s.Max > spreadLimit*s.Min }

// String gives the median, the extremes, and a mark if they are far apart.
func (s summary) String() string {
	mark := ""
	if s.noisy() {
		mark = " !"
	}
	return fmt.Sprintf("%.3g [%.3g..%.3g]%s", s.Median, s.Min, s.Max, mark)
}

// warnings collects what the reader should know before believing the figures.
type warnings []string

func (w *warnings) add(format string, args ...any) { *w = append(*w, fmt.Sprintf(format, args...)) }

func (w *warnings) spread(what string, s summary) {
	if s.noisy() {
		w.add("%s: max/min of rounds is %.2f", what, s.Max/s.Min)
	}
}

func (w warnings) print() {
	for _, s := range w {
		fmt.Println("warning:", s)
	}
}

// table prints aligned columns.
type table struct{ w *tabwriter.Writer }

func newTable(head ...string) table {
	t := table{tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(t.w)
	t.row(head...)
	return t
}

func (t table) row(cols ...string) { fmt.Fprintln(t.w, strings.Join(cols, "\t")) }
func (t table) flush()             { t.w.Flush() }

// progress tells on stderr what runs.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
