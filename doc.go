// Package tidemark keeps concurrent data structures across crashes.
//
// A program opens a [Heap], which is a directory, and in it structures by name:
// hash maps, and what else it builds on the same floor. Their data live in a
// mapped file; their indexes live in ordinary memory and are rebuilt, in
// parallel, when the heap is opened again.
//
// # What survives
//
// Durability here is buffered (Montage, ICPP 2021): time is cut into epochs of
// 10 ms, and a crash takes back at most the operations of the last two, all of
// an epoch or nothing. (Epochs last longer while every processor is busy: the
// clock's goroutine has to get one.) What is left is the state after some prefix of the
// operations that were carried out, never part of one. [Heap.Sync] returns once
// everything that ended before it survives.
//
// Which crash that is, the [Domain] says: [ProcessCrash] (the default) survives
// kill -9, a panic and the OOM killer, since the kernel's page cache outlives
// the process, but not a power loss. [PowerLoss] needs persistent memory.
//
// # Operations
//
// The methods of a structure are operations of their own. [Heap.Do] makes one
// operation of several, over any structures of the heap; a crash leaves all of
// it or nothing. It is atomic against failure, not isolated: other goroutines
// may read what it has done before it ends. They cannot overwrite it: two
// operations that change the same thing exclude each other.
//
// # The packages
//
//	persist    maps the file; write-back, order, fence; simulated media
//	alloc      superblocks, size classes, free blocks
//	epoch      the clock, operations, background write-back, Sync
//	payload    typed and untyped payloads and their life
//	recovery   what lived, and k iterators over it
//	structures/hashmap
//	tidemark   this package: open, operate, close
//
// Imports go upwards in this list only. Authors of structures use payload,
// recovery and [Heap.OpenStructure]; persist/crashsim is the machine to test them on.
package tidemark
