package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/payload"
	"github.com/tidemark-db/tidemark/recovery"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// What was put before a Sync is there when the heap is opened again.
func Example() {
	dir, err := os.MkdirTemp("", "tidemark")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for range 2 {
		heap, err := tidemark.Open(dir, nil)
		if err != nil {
			log.Fatal(err)
		}
		visits, err := hashmap.OpenTyped(heap, "visits", hashmap.String(), hashmap.Fixed[uint64](), nil)
		if err != nil {
			log.Fatal(err)
		}
		err = visits.Update("ada", func(n uint64, _ bool) (uint64, bool) { return n + 1, true })
		if err != nil {
			log.Fatal(err)
		}
		if err := heap.Sync(context.Background()); err != nil {
			log.Fatal(err)
		}
		fmt.Println(visits.Get("ada"))
		if err := heap.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
}

// A job moves from one map to another, or stays: it is never in both or in none.
func ExampleHeap_Do() {
	heap, err := tidemark.OpenMem(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	todo, _ := hashmap.Open(heap, "todo", nil)
	done, _ := hashmap.Open(heap, "done", nil)
	todo.Put([]byte("job 1"), []byte("sweep"))

	finish := func(result error) error {
		return heap.Do(func(op tidemark.Op) error {
			job, err := todo.In(op).Get([]byte("job 1"))
			if err != nil {
				return err
			}
			if _, err := todo.In(op).Delete([]byte("job 1")); err != nil {
				return err
			}
			if err := done.In(op).Put([]byte("job 1"), job); err != nil {
				return err
			}
			return result // an error undoes both changes
		})
	}
	fmt.Println(finish(errors.New("broom broke")), todo.Len(), done.Len())
	fmt.Println(finish(nil), todo.Len(), done.Len())
	// Output:
	// broom broke 1 0
	// <nil> 0 1
}

// A structure of one's own: a set of counters, of which only the payloads are
// kept and the index is rebuilt.
func ExampleHeap_OpenStructure() {
	type counter struct {
		ID uint32
		_  uint32
		N  uint64
	}
	counterType := payload.MustType[counter]("counter")
	heap, err := tidemark.OpenMem(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()

	open := func() (*tidemark.Structure, map[uint32]payload.Ref) {
		s, err := heap.OpenStructure("counters", "counters", counterType.Descriptor())
		if err != nil {
			log.Fatal(err)
		}
		index := map[uint32]payload.Ref{}
		err = s.Rebuild(context.Background(), 1, func(_ int, it *recovery.Iterator) error {
			c, err := counterType.View(s.Space(), it.Ref())
			if err == nil {
				index[c.ID] = it.Ref()
			}
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
		return s, index
	}
	add := func(s *tidemark.Structure, index map[uint32]payload.Ref, id uint32) error {
		return heap.Do(func(op tidemark.Op) (err error) {
			ref, ok := index[id]
			if !ok {
				ref, err = counterType.New(op, s.Space(), counter{ID: id, N: 1})
			} else {
				ref, err = counterType.Update(op, s.Space(), ref, func(c *counter) { c.N++ })
			}
			if err == nil {
				index[id] = ref // the Ref may be a new one
			}
			return err
		})
	}

	s, index := open()
	for range 3 {
		if err := add(s, index, 7); err != nil {
			log.Fatal(err)
		}
	}
	s.Close()
	s, index = open()
	c, err := counterType.View(s.Space(), index[7])
	fmt.Println(len(index), c.N, err)
	// Output: 1 3 <nil>
}
