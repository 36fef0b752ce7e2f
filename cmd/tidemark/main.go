package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"

	"github.com/tidemark-db/tidemark"
)

// Exit statuses.
const (
	exitOK     = 0
	exitDamage = 1
	exitFailed = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// A command is one of the words that can follow tidemark.
type command struct {
	name  string
	usage string
	args  int  // how many it takes
	json  bool // has the flag -json
	run   func(*call) error
}

var commands = []command{
	{"info", "tidemark info [-json] DIR", 1, true, info},
	{"verify", "tidemark verify [-json] DIR", 1, true, verify},
	{"dump", "tidemark dump DIR NAME", 2, false, dump},
}

// call is one run of a command.
type call struct {
	ctx            context.Context
	args           []string
	json           bool
	stdout, stderr io.Writer
	found          problems
}

// run carries out a command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, section(""))
		return exitFailed
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		return help(args[1:], stdout, stderr)
	}
	cmd := find(args[0])
	if cmd == nil {
		return unknown(args[0], stderr)
	}
	c := &call{ctx: ctx, stdout: stdout, stderr: stderr}
	fs := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if cmd.json {
		fs.BoolVar(&c.json, "json", false, "")
	}
	var err error
	if c.args, err = parse(fs, args[1:]); errors.Is(err, flag.ErrHelp) {
		return help([]string{cmd.name}, stdout, stderr)
	}
	if err == nil && len(c.args) != cmd.args {
		err = fmt.Errorf("%d arguments, want %d", len(c.args), cmd.args)
	}
	if err != nil {
		fmt.Fprintf(stderr, "tidemark %s: %v\nusage: %s\n", cmd.name, err, cmd.usage)
		return exitFailed
	}
	return c.status(cmd.run(c))
}

// status prints a command's error and turns it into an exit status.
func (c *call) status(err error) int {
	switch {
	case c.ctx.Err() != nil && errors.Is(err, c.ctx.Err()):
		fmt.Fprintln(c.stderr, "tidemark: interrupted")
		return exitFailed
	case err != nil:
		fmt.Fprintln(c.stderr, message(err))
		if errors.Is(err, tidemark.ErrCorrupt) {
			return exitDamage
		}
		return exitFailed
	case c.found.len() > 0:
		return exitDamage
	}
	return exitOK
}

// message is an error on one line. Joined errors have several.
func message(err error) string {
	s := strings.ReplaceAll(err.Error(), "\n", "; ")
	if strings.HasPrefix(s, "tidemark: ") {
		return s
	}
	return "tidemark: " + s
}

// parse takes flags from anywhere among args, up to a "--", and returns the rest.
func parse(fs *flag.FlagSet, args []string) (rest []string, err error) {
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		left := fs.Args()
		if at := len(args) - len(left); at > 0 && args[at-1] == "--" {
			return append(rest, left...), nil
		}
		if len(left) > 0 {
			rest, left = append(rest, left[0]), left[1:]
		}
		args = left
	}
	return rest, nil
}

// open opens the heap read-only. What damage it and its structures have is
// collected, not an error.
func (c *call) open(opt tidemark.Options) (*tidemark.Heap, error) {
	return tidemark.OpenReadOnlyContext(c.ctx, c.args[0], c.options(opt))
}

func (c *call) options(opt tidemark.Options) *tidemark.Options {
	opt.Policy, opt.Damage = tidemark.Salvage, c.found.add
	opt.MaxSize = math.MaxInt64 // whatever the heap's program allows
	return &opt
}

func find(name string) *command {
	for i := range commands {
		if commands[i].name == name {
			return &commands[i]
		}
	}
	return nil
}

func unknown(name string, stderr io.Writer) int {
	fmt.Fprintf(stderr, "tidemark: there is no command %q\n\n%s", name, section(""))
	return exitFailed
}

func help(args []string, stdout, stderr io.Writer) int {
	topic := ""
	if len(args) > 0 {
		if topic = args[0]; find(topic) == nil {
			return unknown(topic, stderr)
		}
	}
	if _, err := io.WriteString(stdout, section(topic)); err != nil {
		fmt.Fprintln(stderr, message(err))
		return exitFailed
	}
	return exitOK
}

//go:embed doc.go
var doc string

// section returns a section of the package comment as text: the one headed by
// topic, or what precedes all headings.
func section(topic string) string {
	var b strings.Builder
	at := ""
	for line := range strings.Lines(doc) {
		text, ok := strings.CutPrefix(line, "//")
		if !ok {
			break
		}
		text = strings.TrimPrefix(text, " ")
		if head, ok := strings.CutPrefix(text, "# "); ok {
			at = strings.TrimSpace(head)
		} else if at == topic {
			b.WriteString(strings.Replace(text, "\t", "    ", 1))
		}
	}
	return strings.TrimLeft(strings.TrimRight(b.String(), "\n")+"\n", "\n")
}
