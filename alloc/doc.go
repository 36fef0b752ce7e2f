// Package alloc hands out persistent blocks. After Ralloc (Cai et al., ISMM
// 2020) only what recovery cannot rebuild is on media: which superblock belongs
// to whom and how it is cut. Everything else (free bits, lists, caches) is
// volatile and rebuilt by [Allocator.Sweep].
//
// The region behind its header unit is a sequence of superblocks of one or more
// 64 KiB units. A superblock starts with a 64-byte header whose first word names
// its owner (a structure), its length in units and its size class; equal blocks
// follow. A block starts with its control word, which belongs to the layers
// above; alloc only knows that the word 0 reads as free.
//
// An allocation pops a block from the caller's [Cache], which is refilled in
// batches from the pool of its (owner, class): no durable word is written and
// no fence is taken.
//
// Invariants:
//
//   - A1: walking headers from unit 1, by the units they name, meets every
//     superblock on media that holds a block that counts.
//   - A2: when a superblock's header names a layout durably, every control word
//     of that layout reads dead unless it was stored under this header.
//   - A3: a block is handed out again only when its control word is durably dead.
//   - A4: blocks never share a line's control words with another's header: block
//     sizes are multiples of 32, so the first 24 bytes of a block lie in one line.
//   - A5: allocation and free write no durable word and take no fence, except
//     once for each new superblock.
package alloc
