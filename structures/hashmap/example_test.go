package hashmap_test

import (
	"fmt"
	"log"
	"slices"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

func ExampleMap_All() {
	heap, err := tidemark.OpenMem(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	m, err := hashmap.Open(heap, "colours", nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range []string{"red", "green", "blue"} {
		m.Put([]byte(c), []byte(fmt.Sprint(len(c))))
	}
	var all []string
	for k, v := range m.All() {
		all = append(all, fmt.Sprintf("%s=%s", k, v)) // copies: k and v are valid until the loop goes on
	}
	slices.Sort(all)
	fmt.Println(all)
	// Output: [blue=4 green=5 red=3]
}

func ExampleMap_CompareAndSwap() {
	heap, err := tidemark.OpenMem(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	m, err := hashmap.Open(heap, "leases", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.CompareAndSwap([]byte("leader"), nil, []byte("a"))) // nil: absent
	fmt.Println(m.CompareAndSwap([]byte("leader"), nil, []byte("b")))
	fmt.Println(m.CompareAndSwap([]byte("leader"), []byte("a"), []byte("b")))
	// Output:
	// true <nil>
	// false <nil>
	// true <nil>
}
