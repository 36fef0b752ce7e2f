// Invertedindex indexes the Go source files of the standard library, word by
// word, with several goroutines, and is killed twice while it does so.
//
// The program starts itself again as the indexer, and kills it (SIGKILL) at a
// random moment. The next indexer opens the same heap, finds what the first had
// done but for its last few milliseconds, and goes on. In the end the index is
// compared with one built in memory.
//
//	go run ./examples/invertedindex
//
// index.go is the index and how it uses tidemark; indexer.go the process that is
// killed; this file the one that kills.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	dir := flag.String("dir", "", "directory of the heap, to be kept (the default is a temporary one)")
	src := flag.String("src", "", "directory of the sources (the default is GOROOT/src)")
	limit := flag.Int("files", 0, "index this many files only, chosen evenly (0 is all)")
	child := flag.Bool("indexer", false, "be the indexer (the program gives this to itself)")
	flag.Parse()
	if *src == "" {
		*src = goroot()
	}
	var err error
	if *child {
		err = indexer(*dir, *src, *limit)
	} else {
		err = story(os.Stdout, *dir, *src, *limit)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "invertedindex:", err)
		os.Exit(1)
	}
}

func goroot() string {
	out, _ := exec.Command("go", "env", "GOROOT").Output()
	return filepath.Join(strings.TrimSpace(string(out)), "src")
}

// sources lists the Go files, always in the same order: a file's number is its
// place in the list.
func sources(src string, limit int) (files []string, err error) {
	err = filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".go"):
			files = append(files, path)
		}
		return nil
	})
	if limit > 0 && limit < len(files) {
		for i := range limit {
			files[i] = files[i*len(files)/limit]
		}
		files = files[:limit]
	}
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no Go files in %s", src)
	}
	return files, err
}

// kills is how often the indexer is killed.
const kills = 2

// teller is what the story knows of the index. Each file is, in this order,
// indexed (an operation that a crash may take back) and acknowledged (a Sync has
// returned since).
type teller struct {
	out      io.Writer
	live     bool // out is a terminal: show progress
	indexed  []bool
	acked    []bool
	complete bool
}

func story(out *os.File, dir, src string, limit int) error {
	begin := time.Now()
	files, err := sources(src, limit)
	if err != nil {
		return err
	}
	if dir == "" {
		tmp, err := os.MkdirTemp(memoryDir(), "tidemark-index-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = filepath.Join(tmp, "heap")
	}
	t := &teller{out: out, indexed: make([]bool, len(files)), acked: make([]bool, len(files))}
	if fi, err := out.Stat(); err == nil {
		t.live = fi.Mode()&os.ModeCharDevice != 0
	}
	t.say("indexing %s Go files of %s into %s", comma(len(files)), src, dir)
	for n := 0; !t.complete; n++ {
		killAt := len(files) + 1 // never
		if n < kills {           // in the first part of its work, then in the second
			killAt = len(files) * (15 + 40*n + rand.IntN(30)) / 100
		}
		if err := t.run(n, killAt, dir, src, limit); err != nil {
			return err
		}
	}
	if err := t.compare(dir, files); err != nil {
		return err
	}
	t.say("all of it in %v", time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// run starts an indexer and listens to it until it ends, or is killed once
// killAt files are indexed.
func (t *teller) run(n, killAt int, dir, src string, limit int) error {
	cmd := exec.Command(os.Args[0], "-indexer", "-dir="+dir, "-src="+src, "-files="+strconv.Itoa(limit))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // closes when this process ends, and ends the indexer
	if err != nil {
		return err
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	var killed time.Time
	var wrong []string
	found := make([]bool, len(t.indexed)) // files done at the start
	count, words := 0, 0
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // a line without its end was cut by the kill
		}
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		arg, _ := strconv.Atoi(rest)
		switch verb {
		case "recovered": // how long it took, how many payloads there are
			if n > 0 {
				t.say("recovered in %s", rest)
			}
		case "half":
			wrong = append(wrong, "file "+rest+" is half-indexed")
		case "found":
			found[arg] = true
		case "ready":
			wrong = append(wrong, t.resume(n, found)...)
			count = t.count()
		case "indexed":
			t.indexed[arg] = true
			if count++; t.live && count%50 == 0 {
				fmt.Fprintf(t.out, "\r%s of %s files", comma(count), comma(len(t.indexed)))
			}
		case "synced":
			t.acked[arg] = true
		case "complete":
			t.complete, words = true, arg
		}
		if count >= killAt && killed.IsZero() || len(wrong) > 0 {
			time.Sleep(rand.N(10 * time.Millisecond))
			killed = time.Now()
			cmd.Process.Kill() // lines that it has written already are still read
		}
	}
	if t.live {
		fmt.Fprint(t.out, "\r\033[K") // what comes next replaces the progress
	}
	err = cmd.Wait()
	switch {
	case len(wrong) > 0:
		return errors.New(strings.Join(wrong, "; "))
	case !killed.IsZero():
		t.complete = false
		t.say("killed the indexer after %.1f s: %s of %s files done", killed.Sub(start).Seconds(), comma(t.count()), comma(len(t.indexed)))
		return nil
	case err != nil || !t.complete:
		return fmt.Errorf("the indexer ended by itself: %v", cmd.ProcessState)
	}
	t.say("finished in %.1f s: %s postings", time.Since(start).Seconds(), comma(words))
	return nil
}

// resume compares what an indexer found with what the one before it had done.
func (t *teller) resume(n int, found []bool) (wrong []string) {
	again, acked := 0, 0
	for i := range found {
		switch {
		case t.acked[i] && !found[i]:
			wrong = append(wrong, fmt.Sprintf("file %d was acknowledged and is not there", i))
		case t.indexed[i] && !found[i]:
			again++
		}
		if t.acked[i] {
			acked++
		}
	}
	copy(t.indexed, found)
	if n > 0 && len(wrong) == 0 {
		t.say("  %s files have to be done again; all %s acknowledged ones are there, none by half", comma(again), comma(acked))
	}
	return wrong
}

func (t *teller) count() (n int) {
	for _, ok := range t.indexed {
		if ok {
			n++
		}
	}
	return n
}

// compare builds the index in memory, and compares.
func (t *teller) compare(dir string, files []string) error {
	memory, err := inMemory(files)
	if err != nil {
		return err
	}
	x, err := openIndex(dir)
	if err != nil {
		return err
	}
	defer x.heap.Close()
	t.say("opened the finished index in %v", x.took.Round(time.Millisecond))
	if err := x.compare(memory); err != nil {
		return err
	}
	t.say("it is word for word the same as one built in memory: %s words", comma(len(memory)))
	word := "goroutine"
	if list := memory[word]; len(list) > 0 {
		most := slices.MaxFunc(list, func(a, b posting) int { return len(a.where) - len(b.where) })
		t.say("%q is in %s files, most often (%d times) in %s", word, comma(len(list)), len(most.where), files[most.file])
	}
	return nil
}

// inMemory builds the index as Go programs usually do.
func inMemory(files []string) (map[string][]posting, error) {
	memory := map[string][]posting{}
	for number, path := range files {
		words, err := tokenize(path)
		if err != nil {
			return nil, err
		}
		for word, where := range words {
			memory[word] = append(memory[word], posting{number, where})
		}
	}
	return memory, nil
}

// has reports whether the postings, which are in order of files, have this one.
func has(list []posting, file int, where []int) bool {
	i, ok := slices.BinarySearchFunc(list, file, func(p posting, file int) int { return p.file - file })
	return ok && slices.Equal(list[i].where, where)
}

func (t *teller) say(format string, args ...any) {
	fmt.Fprintf(t.out, format+"\n", args...)
}

// comma writes 1234567 as 1,234,567.
func comma(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// memoryDir is where a temporary heap goes: a file system in memory, if there is
// one with room, else the directory for temporary files ("").
func memoryDir() string {
	const shm = "/dev/shm"
	if runtime.GOOS == "linux" && free(shm) > 1<<30 {
		return shm
	}
	return ""
}
