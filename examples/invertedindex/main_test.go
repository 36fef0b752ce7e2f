package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The story starts its own program again, which here is the test.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-indexer") {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestStory(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for a second")
	}
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	err = story(out, filepath.Join(dir, "heap"), goroot(), 600)
	text, _ := os.ReadFile(out.Name())
	t.Logf("%s", text)
	if err != nil {
		t.Fatal(err)
	}
	for want, n := range map[string]int{"killed the indexer": 2, "recovered in": 2, "acknowledged ones are there": 2, "word for word the same": 1} {
		if got := strings.Count(string(text), want); got != n {
			t.Errorf("%q is said %d times; want %d", want, got, n)
		}
	}
}

func TestPositions(t *testing.T) {
	for _, want := range [][]int{nil, {0}, {0, 1, 200, 70000}} {
		got, ok := parsePositions(appendPositions(nil, want))
		if !ok || !slices.Equal(got, want) {
			t.Errorf("%v comes back as %v, %v", want, got, ok)
		}
	}
	if _, ok := parsePositions([]byte{3, 1}); ok {
		t.Error("positions that are cut short are taken")
	}
}
