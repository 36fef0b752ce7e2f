package alloc

import "github.com/tidemark-db/tidemark/persist"

// Owner names the structure a superblock belongs to. 0 is nobody.
type Owner uint32

// MaxOwner is the largest Owner a header can name.
const MaxOwner Owner = 1<<24 - 1

// A superblock header is one line, of which the first word is used; the rest is
// zero. The word is sealed (persist.Seal) and always written with Store:
//
//	bits 0..7    size class; 255 for a run that holds one block
//	bits 8..31   units, at least 1
//	bits 32..55  owner, at least 1
//	bits 56..63  seal
//
// The word 0 is a unit that no superblock starts at.
func encodeHeader(o Owner, units, class int) uint64 {
	return persist.Seal(uint64(o)<<32 | uint64(units)<<8 | uint64(class))
}

// decodeHeader says why a header is damaged, or "".
func decodeHeader(w uint64) (o Owner, units, cl int, damage string) {
	v, ok := persist.Unseal(w)
	o, units, cl = Owner(v>>32), int(v>>8&(1<<24-1)), int(v&255)
	switch {
	case !ok:
		damage = "A1: superblock header: wrong check byte"
	case v == 0:
	case o == 0 || units == 0:
		damage = "A1: superblock header: no owner or no units"
	case cl != runClass && cl >= len(classes):
		damage = "A1: superblock header: no such size class"
	case cl != runClass && units != classes[cl].units:
		damage = "A1: superblock header: units do not fit the size class"
	}
	return o, units, cl, damage
}
