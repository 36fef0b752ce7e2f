package crashsim_test

import (
	"errors"
	"fmt"

	"github.com/tidemark-db/tidemark/persist"
	"github.com/tidemark-db/tidemark/persist/crashsim"
)

// A greeting is published by the word that holds its length. Leaving out the
// order between the two is a bug that only some crash images show.
func Example() {
	const text, length persist.Off = 0x4000, 0x5000
	const greeting = "low tide"

	for _, ordered := range []bool{true, false} {
		_, err := crashsim.Explore(crashsim.Options{}, func(m *crashsim.Machine) error {
			var r *persist.Region
			var err error
			m.Quiet(func() { r, err = persist.NewSimulated(m) })
			if err != nil {
				return err
			}
			h := r.Handle()
			copy(r.Bytes(text, len(greeting)), greeting)
			r.Wrote(text, len(greeting))
			h.WriteBack(text, len(greeting))
			if ordered {
				h.Order()
			}
			h.Store(length, uint64(len(greeting)))
			h.WriteBack(length, 8)
			return h.Fence()
		}, func(m *crashsim.Machine, c crashsim.Crash) error {
			r, err := persist.NewSimulated(m)
			if err != nil {
				return err
			}
			n := int(r.Load(length))
			if got := string(r.Bytes(text, n)); got != greeting[:n] {
				return errors.New("torn greeting")
			}
			return nil
		})
		var f *crashsim.Failure
		if errors.As(err, &f) {
			fmt.Printf("%v: %v, image %s\n", f.Err, f.Crash.Event, f.Crash.Choice)
		} else {
			fmt.Println("ordered:", err)
		}
	}
	// Output:
	// ordered: <nil>
	// torn greeting: event 9: store handle 2 [0x5000, +8), image old,5000:1
}
