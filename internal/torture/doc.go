// Package torture kills a process that works on a heap, again and again, and
// checks after each kill that what is left is what the heap promises. It holds
// tests only:
//
//	go test ./internal/torture -kills 300
//
// One round:
//
//  1. The test starts itself again as a child. The child opens the heap, checks
//     that it finds what the test found in it, and puts it under load: each of up
//     to eight workers carries out a stream of operations, on keys of its own in
//     two hash maps and on keys that all workers share.
//  2. The test kills the child (SIGKILL) at a random moment: under load, in the
//     middle of its recovery, just after its start, or while it closes the heap.
//  3. The test verifies the heap, opens it read-only, and compares.
//
// A worker's stream depends on the seed, the round and the worker's number only,
// so the test can go through it too. A board, which is a file that both map,
// counts for each worker the operations it began, those that returned, and those
// that a finished Sync covers. The test demands:
//
//   - T1: each worker's keys, and its marks in the shared ones, are as some number
//     of operations of its stream left them, not fewer than a Sync covered, not
//     more than were begun (buffered durability: a prefix, whole operations).
//   - T2: an operation that is there implies every operation, of any worker, that
//     had returned before it began (a prefix of all, not only of each).
//   - T3: money moved between accounts in both maps is neither lost nor made, and
//     pairs of keys, one in each map, are equal (operations over several structures).
//   - T4: Verify finds nothing to complain of, before and after.
//   - T5: no operation returns an error, or a result other than the model's.
//   - T6: a recovery that is killed changes nothing of the above.
//
// Operation numbers are unique over all rounds, so that a value of an operation
// that was once taken back, and comes up again later, is noticed.
package torture
