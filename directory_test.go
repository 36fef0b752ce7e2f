package tidemark

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidemark-db/tidemark/payload"
)

// Arbitrary bytes are a directory entry that encodes to the same bytes, or none.
func FuzzDecodeEntry(f *testing.F) {
	e := &entry{StructureInfo: StructureInfo{Name: "users", Kind: "hashmap", ID: 7}, types: []payload.Descriptor{{Name: "point", Fingerprint: 42}}}
	b := e.encode()
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte{2, 0, 0, 0, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := decodeEntry(b); ok && !bytes.Equal(e.encode(), b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, e, e.encode())
		}
	})
}

func TestDecodeEntryRefusesEveryCut(t *testing.T) {
	e := &entry{StructureInfo: StructureInfo{Name: "users", Kind: "hashmap", ID: 7}, types: []payload.Descriptor{{Name: "point", Fingerprint: 42}}}
	b := e.encode()
	for n := range b {
		_, ok := decodeEntry(b[:n])
		require.False(t, ok, "%d of %d bytes", n, len(b))
	}
	_, ok := decodeEntry(append(b, 0))
	require.False(t, ok)
}
