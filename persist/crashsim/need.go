package crashsim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
)

// NeedResult says what happens when everything that one site does is dropped.
type NeedResult struct {
	Site
	Count  int   // events of the site in the run without drops
	Caught bool  // some image failed, or the drive did
	Err    error // how; nil if nothing noticed
	Report Report
}

func (r NeedResult) String() string {
	if !r.Caught {
		return fmt.Sprintf("%v (%d times) is not needed by any test: %v", r.Site, r.Count, r.Report)
	}
	return fmt.Sprintf("%v (%d times) is needed: %v", r.Site, r.Count, r.Err)
}

// Need tests the test: it drops the write-backs, orders and fences of each call
// site in turn, those of check's recovery included, and explores until
// something fails. drive and check start afresh on every run. Its error is that
// of the run without drops.
func Need(opt Options, drive func(*Machine) error, check func(*Machine, Crash) error) ([]NeedResult, error) {
	opt.Replay = ""
	opt.Sites = true
	opt.Drop = nil
	var first *Machine
	_, err := Explore(opt, func(m *Machine) error {
		first = m
		return drive(m)
	}, check)
	if err != nil {
		return nil, err
	}
	counts := first.SiteCounts()
	var all []NeedResult
	for _, site := range slices.SortedFunc(maps.Keys(counts), func(a, b Site) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Kind, b.Kind))
	}) {
		opt.Drop = func(kind Kind, at string, _ int) bool { return kind == site.Kind && at == site.At }
		rep, err := Explore(opt, func(m *Machine) (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
				}
			}()
			return drive(m)
		}, check)
		all = append(all, NeedResult{Site: site, Count: counts[site], Caught: err != nil, Err: err, Report: rep})
	}
	return all, nil
}

// Unneeded is the error that names the sites nothing noticed the loss of, other
// than those that known says are there for another reason.
func Unneeded(results []NeedResult, known ...string) error {
	var errs []error
	for _, r := range results {
		if !r.Caught && !slices.Contains(known, r.At) {
			errs = append(errs, errors.New(r.String()))
		}
	}
	return errors.Join(errs...)
}
