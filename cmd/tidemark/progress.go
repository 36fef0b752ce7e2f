package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tidemark-db/tidemark"
)

// bar draws progress on one line of a terminal. On a nil bar nothing is drawn.
type bar struct {
	mu    sync.Mutex // progress comes from several goroutines
	w     io.Writer
	width int // characters of the line as it stands
}

// newBar returns a bar on w if that is a terminal, otherwise nil.
func newBar(w io.Writer) *bar {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(st, null) {
		return nil
	}
	return &bar{w: w}
}

const barWidth = 30

// show is an Options.Progress.
func (b *bar) show(p tidemark.Progress) {
	if b == nil {
		return
	}
	what := "sweep"
	if p.Structure != "" {
		what = show(p.Structure)
	}
	if r := []rune(what); len(r) > 24 {
		what = string(r[:23]) + "…"
	}
	share := 1.0
	if p.Total > 0 {
		share = min(1, float64(p.Done)/float64(p.Total))
	}
	full := int(share * barWidth)
	b.draw(fmt.Sprintf("%-24s [%s%s] %3.0f%%", what, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), share*100))
}

// clear leaves an empty line, to print on.
func (b *bar) clear() {
	if b != nil {
		b.draw("")
	}
}

// draw overwrites the line with blanks, so that it needs nothing of a terminal
// but a carriage return.
func (b *bar) draw(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	width := utf8.RuneCountInString(line)
	if width == 0 && b.width == 0 {
		return
	}
	fmt.Fprintf(b.w, "\r%s%s", line, strings.Repeat(" ", max(0, b.width-width)))
	if b.width = width; width == 0 {
		fmt.Fprint(b.w, "\r")
	}
}
