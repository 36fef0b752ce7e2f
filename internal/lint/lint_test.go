// Package lint checks the repository against its own rules.
package lint

import (
	"bufio"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/persist"
)

const (
	root   = "../.."
	module = "github.com/tidemark-db/tidemark"
)

// files calls f for each file of the repository with a suffix.
func files(t *testing.T, suffix string, f func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			if d != nil && d.IsDir() && path != root {
				return fs.SkipDir
			}
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, suffix) {
			return nil
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(root, path)
		f(filepath.ToSlash(rel), string(b))
		return err
	}))
}

// arrows says what each package of the library may import of the others.
var arrows = map[string][]string{
	"persist":                {},
	"persist/crashsim":       {"persist"},
	"internal/mutant":        {},
	"internal/history":       {},
	"alloc":                  {"persist", "internal/mutant"},
	"epoch":                  {"persist", "internal/mutant"},
	"payload":                {"alloc", "epoch", "persist", "internal/mutant"},
	"recovery":               {"alloc", "payload", "persist", "internal/mutant"},
	"":                       {"alloc", "epoch", "payload", "persist", "recovery"},
	"structures/hashmap":     {"", "epoch", "payload", "recovery", "internal/mutant"},
	"cmd/tidemark":           {"", "alloc", "persist", "recovery", "structures/hashmap"},
	"examples/invertedindex": {"", "structures/hashmap"},
}

func TestImportsGoOneWay(t *testing.T) {
	files(t, ".go", func(path, text string) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if dir == "." {
			dir = ""
		}
		allowed, ok := arrows[dir]
		if !ok || strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range f.Imports {
			p := strings.Trim(i.Path.Value, `"`)
			if rest, own := strings.CutPrefix(p, module); own {
				if rest = strings.TrimPrefix(rest, "/"); !slices.Contains(allowed, rest) {
					t.Errorf("%s imports %q", path, p)
				}
			}
			if p == "unsafe" && !slices.Contains([]string{"persist", "persist/crashsim", "alloc", "payload"}, dir) {
				t.Errorf("%s imports unsafe", path)
			}
		}
		if strings.Contains(text, "//go:link"+"name") {
			t.Errorf("%s uses linkname", path)
		}
	})
}

func TestNothingIsLeftToDo(t *testing.T) {
	mark := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
	files(t, ".go", func(path, text string) {
		if m := mark.FindString(text); m != "" {
			t.Errorf("%s: %s", path, m)
		}
	})
}

func TestDependencies(t *testing.T) {
	b, err := os.ReadFile(root + "/go.mod")
	require.NoError(t, err)
	allowed := []string{"golang.org/x/sys", "github.com/puzpuzpuz/xsync/v3", "github.com/stretchr/testify", "github.com/anishathalye/porcupine"}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(f) == 2 && strings.HasPrefix(f[1], "v") && !slices.Contains(allowed, f[0]) {
			t.Errorf("go.mod requires %s", f[0])
		}
	}
}

var invariant = regexp.MustCompile(`(?m)^//\s+- ([PAELRH]\d+): `)

func TestInvariantsAreIndexed(t *testing.T) {
	stated, tests := map[string]string{}, map[string]bool{}
	files(t, ".go", func(path, text string) {
		if strings.HasSuffix(path, "doc.go") {
			for _, m := range invariant.FindAllStringSubmatch(text, -1) {
				stated[m[1]] = path
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	})
	indexed := map[string]bool{}
	for _, row := range table(t, "docs/INVARIANTS.md", "id") {
		id, path, test := row[0], row[2], row[3]
		indexed[id] = true
		if stated[id] != path {
			t.Errorf("%s is said to be stated in %s, and is in %q", id, path, stated[id])
		}
		if !tests[test] {
			t.Errorf("%s is said to be defended by %s, which does not exist", id, test)
		}
	}
	for id, path := range stated {
		if !indexed[id] {
			t.Errorf("%s of %s is not in docs/INVARIANTS.md", id, path)
		}
	}
}

// table returns the rows of the first table of a document whose first column is head.
func table(t *testing.T, path, head string) (rows [][]string) {
	t.Helper()
	f, err := os.Open(filepath.Join(root, path))
	require.NoError(t, err)
	defer f.Close()
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		var cells []string
		for c := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		switch {
		case strings.HasPrefix(line, "|") && cells[0] == head:
			in = true
		case in && !strings.HasPrefix(line, "|"):
			return rows
		case in && !strings.HasPrefix(cells[0], "---"):
			rows = append(rows, cells)
		}
	}
	require.NotEmpty(t, rows, "%s has no table of %s", path, head)
	return rows
}

func TestFormatIsWhatTheCodeWrites(t *testing.T) {
	const doc = "docs/FORMAT.md"
	var have []string
	for i, c := range alloc.Classes() {
		have = append(have, fmt.Sprint([]int{i, c.BlockSize, c.Units, c.Count}))
	}
	var want []string
	for _, row := range table(t, doc, "class") {
		want = append(want, "["+strings.Join(row, " ")+"]")
	}
	require.Equal(t, want, have)

	states := table(t, doc, "state")
	for i, row := range states {
		require.Equal(t, fmt.Sprint(i), row[0])
		require.Equal(t, payload.State(i).String(), row[1])
	}
	require.EqualValues(t, payload.Owned, len(states)-1)

	places := map[string]bool{}
	for _, row := range table(t, doc, "offset") {
		places[row[0]] = true
	}
	for _, off := range []persist.Off{0, 0x1000, persist.ClockOff, persist.CleanOff, persist.SizeOff, persist.BootOff} {
		require.True(t, places[fmt.Sprintf("0x%04x", uint64(off))], "%#x", off)
	}
	b := persist.NewHeader().Encode()
	require.Len(t, b, 64)
	require.Equal(t, "TIDEMARK", string(b[:8]))
	require.EqualValues(t, 1, persist.FormatVersion)
	require.EqualValues(t, 65536, persist.UnitSize)
}

// The README's program compiles, runs, and prints what it should; the targets it
// names exist.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile(root + "/README.md")
	require.NoError(t, err)
	readme := string(b)
	makefile, err := os.ReadFile(root + "/Makefile")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?m)^make ([a-z-]+)").FindAllStringSubmatch(readme, -1) {
		require.Contains(t, string(makefile), "\n"+m[1]+":")
	}
	for _, m := range regexp.MustCompile(`\]\(([a-zA-Z][^):]*)\)`).FindAllStringSubmatch(readme, -1) {
		require.FileExists(t, filepath.Join(root, m[1]))
	}
	programs := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, programs)
	for i, m := range programs {
		dir, err := os.MkdirTemp(".", fmt.Sprint("readme", i, "_"))
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		src := strings.ReplaceAll(m[1], "/tmp/bank", filepath.Join(t.TempDir(), "bank"))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(src), 0o666))
		out, err := exec.Command("go", "run", "./"+dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, "100 <nil>\n", string(out))
	}
}
