// Package epoch is the persistence clock of buffered durable linearizability,
// after Montage (Wen et al., ICPP 2021, sections 3 and 5).
//
// Time is cut into epochs. An operation runs in one epoch, e, and labels with it
// all it creates, changes and retires; when the clock ticks from e+1 to e+2,
// everything of e becomes durable at once. After a crash whose durable clock
// reads C, what counts is the operations of epochs up to B = C-2.
//
// One operation:
//
//  1. [System.Begin] claims a slot and publishes the epoch in it;
//  2. the structure stores payloads and tells the [Slot] what to write back,
//     what to reclaim, and how to undo;
//  3. [Op.End] gives the slot back, or [Op.Abort] undoes and gives it back.
//
// One tick, e to e+1, by the background goroutine or by [System.Sync]:
//
//  1. wait until no operation of an epoch before e is active;
//  2. write back what epoch e-1 recorded;
//  3. order it;
//  4. store the clock word e+1, and fence;
//  5. publish e+1;
//  6. hand blocks retired in e-1 back (or e-2, where readers take no lock).
//
// Invariants:
//
//   - E1: the durable clock is e+1 only if all of epoch e-1 is durable.
//   - E2: an operation never runs in an epoch that the clock has left by two.
//   - E3: a block retired in r is handed out only when the durable clock is at
//     least r+2; one that readers reach without a lock, only when every
//     operation that ran in r has ended as well.
//   - E4: an aborted operation leaves no block and no control word changed once
//     its epoch counts.
package epoch
