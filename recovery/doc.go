// Package recovery decides what lived through a crash and hands it out.
//
// [Heap] runs once, when a heap is opened, whether or not it was closed cleanly:
//
//  1. the clock word C is made durable again as it was read: after a process
//     crash it may be in a cache only, and all decisions rest on it (F9);
//  2. every superblock's header is read, and every block judged by its own
//     control word against the boundary B = C-2 ([payload.Word.Judge]);
//  3. if nothing was damaged, or damage is to be skipped, words of discarded
//     epochs are replaced, and with the headers and all other words written back;
//  4. superblocks of structures that the directory does not know are given up;
//  5. all that is ordered, and only then the clock moves to C+1 and is fenced.
//
// Afterwards each structure rebuilds its index from [Iterator]s over its live
// payloads, as many at once as it likes.
//
// Invariants:
//
//   - R1: nothing is served before what it rests on is durable.
//   - R2: the clock moves only after every word of a discarded epoch has been
//     replaced durably; else those epochs would come to count.
//   - R3: recovery may be cut anywhere and run again: with the same clock it
//     decides the same.
//   - R4: the iterators of a structure hand out each live payload once.
package recovery
