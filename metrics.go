package tidemark

import (
	"time"

	"github.com/tidemark-db/tidemark/alloc"
	"github.com/tidemark-db/tidemark/epoch"
	"github.com/tidemark-db/tidemark/persist"
)

// Metrics describes a heap's state and work. It is a plain value, fit for expvar.
type Metrics struct {
	Epoch epoch.Stats    `json:"epoch"`
	Media persist.Counts `json:"media"` // write-backs and fences since Open; 0 in ProcessCrash

	FileBytes uint64 `json:"fileBytes"` // size of the heap file
	UsedBytes int64  `json:"usedBytes"` // in blocks that are not free; includes retired and cached ones
	FreeBytes int64  `json:"freeBytes"` // in free blocks of superblocks
	IdleBytes int64  `json:"idleBytes"` // in units that no superblock uses
	DiskBytes uint64 `json:"diskBytes"` // what the file takes on disk: idle units may be holes

	Recovery RecoveryMetrics `json:"recovery"`
}

// RecoveryMetrics says what opening the heap found.
type RecoveryMetrics struct {
	Clean    bool          `json:"clean"`    // the heap had been closed
	Boundary uint64        `json:"boundary"` // last epoch that counted
	Live     uint64        `json:"live"`     // payloads kept
	Scrubbed uint64        `json:"scrubbed"` // payloads of epochs that did not count
	Damaged  uint64        `json:"damaged"`
	Elapsed  time.Duration `json:"elapsed"` // of the sweep, without the structures' rebuilds
}

// Metrics returns the present figures. It takes short locks. On a closed heap
// it returns the last state of the clock only.
func (h *Heap) Metrics() Metrics {
	m := Metrics{Epoch: h.clock.Stats(), Recovery: h.recovered()}
	if h.pin() != nil {
		return m
	}
	defer h.unpin()
	m.Media, m.FileBytes = h.r.Counts(), h.r.Size()
	st := h.a.Stats()
	for _, c := range st.Classes {
		m.FreeBytes += c.FreeBytes
		m.UsedBytes += c.Bytes - c.FreeBytes
	}
	m.IdleBytes, m.DiskBytes = int64(st.FreeUnits)*persist.UnitSize, h.r.DiskBytes()
	return m
}

func (h *Heap) recovered() RecoveryMetrics {
	r := &h.result
	return RecoveryMetrics{r.Clean, r.Boundary, r.Live, r.Scrubbed, r.Damaged, r.Elapsed}
}

// Info is what there is to know of a heap without reading its contents.
type Info struct {
	Path     string          `json:"path"`
	UUID     string          `json:"uuid"`
	Format   uint32          `json:"format"`
	Created  time.Time       `json:"created"`
	Clock    uint64          `json:"clock"` // as found on media
	SameBoot bool            `json:"sameBoot"`
	Size     uint64          `json:"size"`
	Recovery RecoveryMetrics `json:"recovery"`
	// Structures, each with its occupancy by size class. The heap's own
	// directory is among them.
	Structures []StructureUse `json:"structures"`
	FreeUnits  int            `json:"freeUnits"` // of 64 KiB
	DiskBytes  uint64         `json:"diskBytes"` // what the file takes on disk
}

// StructureUse is the space of one structure.
type StructureUse struct {
	StructureInfo
	Classes []alloc.ClassStats `json:"classes"`
}

// Info describes the heap. Fragmentation shows as free bytes of classes.
func (h *Heap) Info() (Info, error) {
	if err := h.pin(); err != nil {
		return Info{}, err
	}
	defer h.unpin()
	hd, st := h.r.Header(), h.a.Stats()
	info := Info{
		Path: h.Path(), UUID: hd.ID(), Format: hd.Format, Created: hd.Created, Clock: h.result.Clock,
		SameBoot: h.r.SameBoot(), Size: h.r.Size(), Recovery: h.recovered(), FreeUnits: st.FreeUnits, DiskBytes: h.r.DiskBytes(),
		Structures: []StructureUse{{StructureInfo: StructureInfo{Name: "(directory)", ID: uint32(systemOwner)}}},
	}
	for _, s := range h.Structures() {
		info.Structures = append(info.Structures, StructureUse{StructureInfo: s})
	}
	for i := range info.Structures {
		s := &info.Structures[i]
		for _, c := range st.Classes {
			if uint32(c.Owner) == s.ID {
				s.Classes = append(s.Classes, c)
			}
		}
	}
	return info, nil
}
