package persist

import "fmt"

// Domain names the failure that acknowledged data survives.
type Domain uint8

const (
	// ProcessCrash: data survive the end of the process, however it ends
	// (kill -9, panic, OOM kill): the kernel keeps the page cache. A power loss
	// or a kernel crash may lose or tear anything written since the file was
	// last written out. Order and Fence cost nothing.
	ProcessCrash Domain = iota
	// PowerLoss: data survive a power loss. It needs persistent memory: a file
	// system that grants MAP_SYNC.
	PowerLoss
	// Emulated: executes PowerLoss's instructions on ordinary memory. Survives
	// what ProcessCrash survives; it exists to measure.
	Emulated
)

func (d Domain) String() string {
	switch d {
	case ProcessCrash:
		return "ProcessCrash"
	case PowerLoss:
		return "PowerLoss"
	case Emulated:
		return "Emulated"
	}
	return fmt.Sprintf("Domain(%d)", uint8(d))
}

// noInstruction is what WriteBackInstruction returns in builds that have none.
const noInstruction = "none"
