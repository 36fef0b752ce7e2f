// Tidemark looks at heaps without changing them.
//
//	tidemark info [-json] DIR     what a heap is, and what is in it
//	tidemark verify [-json] DIR   read everything and report damage
//	tidemark dump DIR NAME        write a structure out as JSON lines
//	tidemark help [COMMAND]       this text, or more on one command
//
// DIR is the directory of a heap. Every command opens it read-only, beside other
// readers but not beside a program that has it open for writing. What a crash
// left is recovered in private memory: nothing in DIR changes. Flags may come
// before or after DIR.
//
// Exit status: 0 all is well; 1 the heap is damaged; 2 the command could not run,
// or could not finish, for another reason, which it says on standard error.
//
// # info
//
//	tidemark info [-json] DIR
//
// Info prints the header of a heap, its clock, whether it was closed, its
// structures, and how full their superblocks are, by size of block.
//
//	clock          the epoch clock as it stands on media
//	boundary       the last epoch that counts; later ones are discarded
//	state          closed, or crashed: not closed by its last writer
//	same boot      whether the last writer ran since this system was started.
//	               If not, a crash may have been a power loss as well
//	on disk        what the file system has set aside for the file; the rest
//	               of the file is holes
//	free units     64 KiB units of the file that no superblock uses
//	fragmentation  free bytes in superblocks that are in use, as a share of
//	               all bytes of such superblocks
//
// Figures are those after recovery: what a crash discarded counts as free.
// Damage met on the way is printed on standard error.
//
// # verify
//
//	tidemark verify [-json] DIR
//
// Verify reads the whole heap: header copies, clock, superblock headers, control
// words, and the checksum of every live payload. Of hash maps it also rebuilds
// the index, in memory, to find entries that make no sense and keys that are
// there twice. Each problem is one line on standard output: the structure, where
// that is known, the offset in the heap file, and the rule that is broken.
//
// On a terminal a bar shows how far it is. An interrupt ends it early, with
// status 2; problems found until then are printed.
//
// # dump
//
//	tidemark dump DIR NAME
//
// Dump writes the structure called NAME to standard output, one JSON object a
// line, in no order that means anything.
//
// An entry of a hash map has the members key and value. Bytes that are not UTF-8
// are in key64 or value64 instead, as base64. Of any other kind of structure,
// each payload is an object with the members ref (its offset), tag, size and
// bytes64.
//
// Damaged entries are left out; each is named on standard error.
package main
