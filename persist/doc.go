// Package persist is the only package that maps heap files and that issues
// write-backs, orders and fences.
//
//	plain store ─▶ dirty ──WriteBack──▶ pending ──Order/Fence──▶ durable
//	                 └──────── eviction, at any time ──────────────▲
//
// # The persistency model
//
// Everything above this package is written against one model:
//
//   - A plain store into a [Region] may reach media at any time after it
//     executes, or never. Aligned 8-byte words are atomic, nothing larger is.
//   - [Handle.WriteBack] starts moving a range to media.
//   - [Handle.Order] makes what the handle wrote back reach media before any
//     [Handle.Store] executed after it by whoever has observed it.
//   - [Handle.Store] is an ordered 8-byte store: the epoch clock, superblock
//     headers, every word whose place in the order matters. A domain may defer
//     it until a log record of it is durable; until then [Region.Load] returns
//     the old value, so owners keep such words in volatile memory as well.
//   - [Handle.Fence] returns once all the handle wrote back is durable (ordered
//     stores need a write-back, too), or with an error, after which nothing it
//     covers may be published.
//
// A plain store that is not written back may be overtaken by anything; a plain
// store executed after Order may reach media before the ordered range does (a
// page cache does that). Only Fence orders plain stores.
//
// # Domains
//
// Which failure the words above survive is the [Domain] of the region. In
// [ProcessCrash] all of them are free, since the kernel's page cache outlives
// the process. On DAX media ([PowerLoss]) they are CLWB and SFENCE. [Emulated]
// executes those instructions on ordinary memory, to measure their cost.
// Simulated regions ([NewSimulated]) hand every event to a [Machine]; package
// crashsim has one that enumerates crash images.
//
// Invariants:
//
//   - P1: a Region never hands out memory outside [0, Size).
//   - P2: Fence covers what was written back through its handle, whichever
//     threads ran the goroutines that held it: a hand-over of a handle is a
//     synchronising operation, and those are locked instructions or barriers.
//   - P3: Store and StoreWord write 8 aligned bytes with one instruction.
//   - P4: a heap file appears under its name only when its header is complete,
//     and a failed Open changes nothing.
//   - P5: every header word is covered by a checksum or by a check byte.
//   - P6: a heap file never gets shorter than its size word says.
package persist
