// Bench measures tidemark, and what it is compared with. Each workload is a file
// of its own; engines are in engine.go. See README.md for how to run them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"

	"github.com/tidemark-db/tidemark"
)

type workload struct {
	name, about string
	run         func(args []string) error
}

// Without an about: what a workload runs in a process of its own.
var workloads = []workload{
	{"map", "throughput of hash maps under mixes of get, insert and remove", runMap},
	{"recover", "time from Open to a usable hash map, after Close or a kill", runRecover},
	{"sync", "latency of Sync, idle and after one Put", runSync},
	{"memory", "index bytes an entry, and what the index costs the garbage collector", runMemory},
	{"micro", "single operations on a small heap, as go test -bench runs them", runMicro},
	{"recover-fill", "", recoverFill},
	{"recover-once", "", recoverOnce},
}

func main() {
	err := dispatch(os.Args[1:])
	pprof.StopCPUProfile()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func dispatch(args []string) error {
	err := flag.ErrHelp
	if len(args) > 0 && args[0] != "help" && args[0] != "-h" {
		err = fmt.Errorf("no workload %q", args[0])
		for _, w := range workloads {
			if w.name == args[0] {
				return w.run(args[1:])
			}
		}
	}
	fmt.Fprintln(os.Stderr, "usage: go run . workload [flags]; -h after a workload lists its flags")
	for _, w := range workloads {
		if w.about != "" {
			fmt.Fprintf(os.Stderr, "  %-8s %s\n", w.name, w.about)
		}
	}
	return err
}

// common has the flags of every workload.
type common struct {
	*flag.FlagSet
	dir, json  string
	cpuprofile string
}

func newCommon(name string) *common {
	c := &common{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	c.StringVar(&c.dir, "dir", "", "heaps are made in a temporary directory in `dir` (default /dev/shm if there is one)")
	c.StringVar(&c.cpuprofile, "cpuprofile", "", "write a profile of the whole run to `file`")
	c.StringVar(&c.json, "json", "", "also write the results to `file`")
	return c
}

// parse refuses arguments that are not flags.
func (c *common) parse(args []string) error {
	if err := c.Parse(args); err != nil {
		return err
	}
	if c.cpuprofile != "" {
		f, err := os.Create(c.cpuprofile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
	}
	if c.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q", c.Name(), c.Arg(0))
	}
	return nil
}

// tempDir makes the directory for heaps. It goes away with cleanup, and on an
// interrupt, since on tmpfs it would hold memory.
func (c *common) tempDir() (dir string, cleanup func(), err error) {
	parent := c.dir
	if parent == "" {
		parent = os.TempDir()
		if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
			parent = "/dev/shm"
		}
	}
	if dir, err = os.MkdirTemp(parent, "tidemark-bench-"); err != nil {
		return "", nil, err
	}
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupt
		os.RemoveAll(dir)
		os.Exit(130)
	}()
	return dir, func() { os.RemoveAll(dir) }, nil
}

// list is a flag of values separated by commas.
type list[T any] struct {
	vals  []T
	parse func(string) (T, error)
	text  string
}

func (c *common) ints(name, def, usage string) *list[int] {
	return addList(c, name, def, usage, strconv.Atoi)
}

func (c *common) words(name, def, usage string) *list[string] {
	return addList(c, name, def, usage, func(s string) (string, error) { return s, nil })
}

func (c *common) domains(def string) *list[tidemark.Domain] {
	return addList(c, "domain", def, "process or emulated", parseDomain)
}

func addList[T any](c *common, name, def, usage string, parse func(string) (T, error)) *list[T] {
	l := &list[T]{parse: parse}
	if err := l.Set(def); err != nil {
		panic(err)
	}
	c.Var(l, name, usage+", separated by `commas`")
	return l
}

func (l *list[T]) String() string { return l.text }

func (l *list[T]) Set(s string) error {
	l.vals, l.text = nil, s
	for part := range strings.SplitSeq(s, ",") {
		v, err := l.parse(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		l.vals = append(l.vals, v)
	}
	return nil
}

func parseDomain(s string) (tidemark.Domain, error) {
	switch s {
	case "process":
		return tidemark.ProcessCrash, nil
	case "emulated":
		return tidemark.Emulated, nil
	case "power":
		return tidemark.PowerLoss, nil
	}
	return 0, fmt.Errorf("domain %q: want process, emulated or power", s)
}

func domainName(d tidemark.Domain) string {
	return map[tidemark.Domain]string{tidemark.ProcessCrash: "process", tidemark.Emulated: "emulated", tidemark.PowerLoss: "power"}[d]
}

// heapDir returns a directory for one heap in dir.
func heapDir(dir, name string) string {
	return filepath.Join(dir, strings.NewReplacer("/", "-").Replace(name))
}

// values returns the flags with what they are set to.
func (c *common) values() map[string]string {
	m := map[string]string{}
	c.VisitAll(func(f *flag.Flag) { m[f.Name] = f.Value.String() })
	return m
}
