// Package hashmap is a concurrent hash map whose entries survive crashes, with
// buffered durability: see package tidemark for what a crash may take back.
//
// Every entry is one payload with its key and value. The index is volatile and
// holds no Go pointers: a table of cache-line buckets, each with a lock and up to
// seven words that name a payload and carry 22 bits of the key's hash; fuller
// buckets chain. The table doubles bucket by bucket, moved along by the writers,
// and never stops the world.
//
// One Put:
//
//  1. hash the key, lock its bucket (moving it to the larger table first, if the
//     table is growing);
//  2. begin an operation, unless the caller gave one;
//  3. if the bucket's stamp is of a newer epoch, give up with ErrOldSeesNew;
//  4. find the entry; create the new payload; delete the old one;
//  5. store the entry word and the stamp; end the operation; unlock.
//
// With a caller's operation the lock is released in step 5 although the
// operation goes on, so the entry word is marked pending: others may read it but
// not change it until the operation ends, which takes the mark off, or puts back
// what was there.
//
// Invariants:
//
//   - H1: at most one live payload of a key, on media at any boundary.
//   - H2: a bucket's stamp is at least the epoch of every update made under its
//     lock; an operation of an older epoch changes nothing there. (After a
//     deletion nothing else would show that a newer epoch was here.)
//   - H3: an entry word is pending exactly while an operation that has changed it
//     and has not ended can still put it back.
//   - H4: an entry is in the bucket of its hash in the newest table that bucket
//     has been moved to.
package hashmap
