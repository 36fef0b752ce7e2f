package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"
)

// indexer is the process that is killed. It tells its parent, line by line on
// standard output, what it does.
func indexer(dir, src string, limit int) error {
	go func() { // the parent has ended
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	files, err := sources(src, limit)
	if err != nil {
		return err
	}
	x, err := openIndex(dir)
	if err != nil {
		return err
	}
	fmt.Printf("recovered %v: %s payloads\n", x.took.Round(time.Millisecond), comma(int(x.heap.Metrics().Recovery.Live)))
	done, err := x.done(files)
	if err != nil {
		return err
	}
	for _, number := range x.check(done) {
		fmt.Println("half", number)
	}
	for number := range done {
		fmt.Println("found", number)
	}
	fmt.Println("ready")

	todo, indexed := make(chan int), make(chan int, 100)
	var workers, syncer sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 {
		workers.Go(func() {
			for number := range todo {
				words, err := tokenize(files[number])
				if err == nil {
					err = x.add(files[number], number, words)
				}
				if err != nil {
					fail(err)
				}
				fmt.Println("indexed", number)
				indexed <- number
			}
		})
	}
	syncer.Go(func() { acknowledge(x, indexed) })
	for number := range files {
		if _, ok := done[number]; !ok {
			todo <- number
		}
	}
	close(todo)
	workers.Wait()
	close(indexed)
	syncer.Wait()
	n := x.postings.Len()
	if err := x.heap.Close(); err != nil {
		return err
	}
	fmt.Println("complete", n)
	return nil
}

// acknowledge says, forty times a second, which files no crash can take back: those
// that were indexed before a Sync that has returned.
func acknowledge(x *index, indexed <-chan int) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	var batch []int
	sync := func() {
		if err := x.heap.Sync(context.Background()); err != nil {
			fail(err)
		}
		for _, number := range batch {
			fmt.Println("synced", number)
		}
		batch = batch[:0]
	}
	for {
		select {
		case number, ok := <-indexed:
			if !ok {
				sync()
				return
			}
			batch = append(batch, number)
		case <-tick.C:
			sync()
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "indexer:", err)
	os.Exit(1)
}
