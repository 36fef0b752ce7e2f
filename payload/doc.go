// Package payload is what the author of a structure sees of the heap: blocks
// with contents, a tag, a checksum and a control word that says in which epoch
// they were created or deleted (Montage, section 3).
//
// A structure keeps its data in payloads and its index in ordinary memory. A
// [Ref] is an offset, so a table of refs costs the garbage collector nothing.
// [Space] has payloads of any length; [Type] adds typed, pointer-free values.
//
// Everything that changes a payload takes the running operation (epoch.Op) and
// labels the change with its epoch. The author keeps two rules: whoever changes
// a payload holds whatever lock, or has won whatever compare-and-swap, makes it
// the only one; and every such lock remembers the newest epoch of an update made
// under it, refusing older operations with ErrOldSeesNew (a deletion leaves
// nothing else to see).
//
// Invariants:
//
//   - L1: a block's fate is in its one control word; see [Word].
//   - L2: a payload whose epoch counts has the contents, size and tag that its
//     checksum says.
//   - L3: all an operation creates, changes and retires carries its one epoch.
//   - L4: contents of an epoch that may count are never overwritten: a change in
//     a later epoch goes to a copy.
package payload
