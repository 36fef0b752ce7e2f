package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tidemark-db/tidemark"
)

// infoReport is what info -json prints.
type infoReport struct {
	tidemark.Info
	Units         uint64    `json:"units"`         // of the file
	OnDisk        *uint64   `json:"onDisk"`        // bytes the file system has set aside; null where it does not say
	Superblocks   int64     `json:"superblocks"`   // in use
	Used          int64     `json:"used"`          // bytes of them that are not free
	Free          int64     `json:"free"`          // bytes of their free blocks
	Fragmentation float64   `json:"fragmentation"` // free, as a share of the superblocks' bytes
	Problems      []problem `json:"problems"`
}

// unitSize is the granule of a heap file; see tidemark.Info.
const unitSize = 64 << 10

func info(c *call) error {
	h, err := c.open(tidemark.Options{})
	if err != nil {
		return err
	}
	rep, err := newInfoReport(h)
	if err := errors.Join(err, h.Close()); err != nil {
		return err
	}
	rep.Problems = c.found.list()
	c.found.print(c.stderr)
	if c.json {
		return writeJSON(c.stdout, rep)
	}
	var b strings.Builder
	rep.printHeader(&b)
	rep.printStructures(&b)
	if rep.Superblocks > 0 {
		rep.printOccupancy(&b)
	}
	_, err = io.WriteString(c.stdout, b.String())
	return err
}

func newInfoReport(h *tidemark.Heap) (rep infoReport, err error) {
	if rep.Info, err = h.Info(); err != nil {
		return rep, err
	}
	rep.Units = rep.Size / unitSize
	if n, ok := onDisk(rep.Path); ok {
		rep.OnDisk = &n
	}
	var total int64
	for _, s := range rep.Structures {
		for _, cl := range s.Classes {
			rep.Superblocks += int64(cl.Superblocks)
			rep.Free += cl.FreeBytes
			total += cl.Bytes
		}
	}
	rep.Used = total - rep.Free
	if total > 0 {
		rep.Fragmentation = float64(rep.Free) / float64(total)
	}
	return rep, nil
}

func (rep *infoReport) printHeader(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	row("heap", "%s", rep.Path)
	row("uuid", "%s", rep.UUID)
	row("format", "%d", rep.Format)
	row("created", "%s", rep.Created.UTC().Format(time.RFC3339))
	row("size", "%s", bytesText(rep.Size))
	if rep.OnDisk != nil {
		n := *rep.OnDisk
		row("on disk", "%s, holes %s", bytesText(n), bytesText(rep.Size-min(n, rep.Size)))
	}
	state := "crashed"
	if rep.Recovery.Clean {
		state = "closed"
	}
	row("state", "%s", state)
	row("same boot", "%s", map[bool]string{true: "yes", false: "no"}[rep.SameBoot])
	row("clock", "%d", rep.Clock)
	row("boundary", "%d", rep.Recovery.Boundary)
	row("payloads", "%d live, %d discarded, %d damaged", rep.Recovery.Live, rep.Recovery.Scrubbed, rep.Recovery.Damaged)
	row("superblocks", "%d, %s used, %s free", rep.Superblocks, bytesText(rep.Used), bytesText(rep.Free))
	row("fragmentation", "%s", percent(rep.Free, rep.Used+rep.Free))
	row("free units", "%d of %d, %s", rep.FreeUnits, rep.Units, bytesText(uint64(rep.FreeUnits)*unitSize))
}

func (rep *infoReport) printStructures(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprint(t, "\nSTRUCTURE\tKIND\tID\tTYPES\n")
	for _, s := range rep.Structures {
		types := make([]string, len(s.Types))
		for i, name := range s.Types {
			types[i] = show(name)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", show(s.Name), orDash(show(s.Kind)), s.ID, orDash(strings.Join(types, ", ")))
	}
}

// printOccupancy has the name last, where it may be left-aligned.
func (rep *infoReport) printOccupancy(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush()
	fmt.Fprint(t, "\nBLOCK\tSUPERBLOCKS\tBYTES\tBLOCKS\tUSED\tFREE\tFULL\t  STRUCTURE\n")
	for _, s := range rep.Structures {
		for _, cl := range s.Classes {
			block := "run"
			if cl.BlockSize > 0 {
				block = bytesText(cl.BlockSize)
			}
			used := cl.Blocks - cl.Free
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%d\t%s\t  %s\n",
				block, cl.Superblocks, bytesText(cl.Bytes), cl.Blocks, used, cl.Free, percent(used, cl.Blocks), show(s.Name))
		}
	}
}

// show returns a name as it is where a terminal can be trusted with it, and
// where it is one word; otherwise quoted.
func show(name string) string {
	if q := strconv.Quote(name); q != `"`+name+`"` || strings.Contains(name, " ") {
		return q
	}
	return name
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// bytesText prints a size in the largest unit it fills.
func bytesText[T int | int64 | uint64](n T) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	digits := 1
	if f == float64(int64(f)) {
		digits = 0
	}
	return strconv.FormatFloat(f, 'f', digits, 64) + " " + units[i]
}
