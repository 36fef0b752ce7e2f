package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tidemark-db/tidemark"
	"github.com/tidemark-db/tidemark/structures/hashmap"
)

// index is the inverted index: two hash maps of one heap.
//
//	postings   word, 0, u32 number of a file  →  where the word is in that file
//	files      path of a file                 →  u32 its number, u32 how many words it has
//
// A file in files is done. Its postings and its entry there are made by one
// operation, so a crash leaves all of them or none.
type index struct {
	heap     *tidemark.Heap
	postings *hashmap.Map
	files    *hashmap.Map
	took     time.Duration // to open all of it
}

func openIndex(dir string) (*index, error) {
	start := time.Now()
	h, err := tidemark.Open(dir, &tidemark.Options{LockTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	postings, err := hashmap.Open(h, "postings", nil)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	files, err := hashmap.Open(h, "files", nil)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &index{h, postings, files, time.Since(start)}, nil
}

// add indexes one file. Once it has returned, others see the file; once a later
// Sync of the heap has returned, so does the next process.
func (x *index) add(path string, number int, words map[string][]int) error {
	return x.heap.Do(func(op tidemark.Op) error {
		// Do runs this function again if the operation gets too old for what it
		// meets, so it has no effects but those of op.
		postings, files := x.postings.In(op), x.files.In(op)
		var key, val []byte
		for word, where := range words {
			key = appendKey(key[:0], word, number)
			val = appendPositions(val[:0], where)
			if err := postings.Put(key, val); err != nil {
				return err
			}
		}
		done := binary.BigEndian.AppendUint32(nil, uint32(number))
		done = binary.BigEndian.AppendUint32(done, uint32(len(words)))
		return files.Put([]byte(path), done)
	})
}

// done returns, by number, how many words each file has that is done.
func (x *index) done(files []string) (map[int]int, error) {
	done := map[int]int{}
	for path, val := range x.files.All() {
		number, words := int(binary.BigEndian.Uint32(val)), int(binary.BigEndian.Uint32(val[4:]))
		if number >= len(files) || files[number] != string(path) {
			return nil, fmt.Errorf("the heap is an index of other files, such as %s", path)
		}
		done[number] = words
	}
	return done, nil
}

// check counts the postings of each file: as many as its entry in files says, or
// none if it is not done. It returns the numbers of files for which that is wrong.
func (x *index) check(done map[int]int) (halves []int) {
	count := map[int]int{}
	for key := range x.postings.Keys() {
		_, number := splitKey(key)
		count[number]++
	}
	for number, n := range count {
		if done[number] != n {
			halves = append(halves, number)
		}
	}
	for number, n := range done {
		if n > 0 && count[number] == 0 {
			halves = append(halves, number)
		}
	}
	return halves
}

// A posting says where a word is in a file: positions count words from 0.
type posting struct {
	file  int
	where []int
}

// compare compares the index with one in memory, and returns the first
// difference as an error.
func (x *index) compare(memory map[string][]posting) error {
	n := 0
	for key, val := range x.postings.All() {
		word, file := splitKey(key)
		where, ok := parsePositions(val)
		if !ok {
			return fmt.Errorf("%q in file %d: positions that make no sense", word, file)
		}
		n++
		if !has(memory[word], file, where) {
			return fmt.Errorf("%q in file %d: the index has %d positions, memory has not the same", word, file, len(where))
		}
	}
	want := 0
	for _, list := range memory {
		want += len(list)
	}
	if n != want || x.postings.Len() != want {
		return fmt.Errorf("the index has %d postings, memory has %d", n, want)
	}
	return nil
}

// tokenize returns the words of a file, [A-Za-z_][A-Za-z0-9_]*, with their positions.
func tokenize(path string) (map[string][]int, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	words := map[string][]int{}
	for i, n := 0, 0; i < len(src); i++ {
		if !letter(src[i]) {
			continue
		}
		start := i
		for i < len(src) && (letter(src[i]) || digit(src[i])) {
			i++
		}
		word := src[start:i]
		words[string(word)] = append(words[string(word)], n)
		n++
	}
	return words, nil
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

func appendKey(dst []byte, word string, file int) []byte {
	dst = append(append(dst, word...), 0)
	return binary.BigEndian.AppendUint32(dst, uint32(file))
}

func splitKey(key []byte) (word string, file int) {
	n := len(key) - 5
	return string(key[:n]), int(binary.BigEndian.Uint32(key[n+1:]))
}

// appendPositions encodes positions: their number, then each one's distance from
// the one before it.
func appendPositions(dst []byte, where []int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(where)))
	last := 0
	for _, p := range where {
		dst = binary.AppendUvarint(dst, uint64(p-last))
		last = p
	}
	return dst
}

func parsePositions(b []byte) (where []int, ok bool) {
	next := func() (v int) {
		u, n := binary.Uvarint(b)
		if ok = n > 0; ok {
			b = b[n:]
		}
		return int(u)
	}
	last := 0
	for n := next(); ok && len(where) < n; {
		last += next()
		where = append(where, last)
	}
	return where, ok && len(b) == 0
}
