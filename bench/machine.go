package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/tidemark-db/tidemark/persist"
)

// machine is what figures depend on besides the code.
type machine struct {
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"`
	GOMAXPROCS int    `json:"gomaxprocs"` // as the program started; workloads set their own
	Go         string `json:"go"`
	OS         string `json:"os"`
	ShmemHuge  string `json:"shmemHuge,omitempty"` // policy for huge pages on tmpfs
	WriteBack  string `json:"writeBack"`           // instruction of the pmem-like domains
}

func thisMachine() machine {
	m := machine{
		CPU: "unknown", CPUs: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0), Go: runtime.Version(),
		OS: runtime.GOOS + "/" + runtime.GOARCH, WriteBack: persist.WriteBackInstruction(),
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if key, val, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(val)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.OS += " " + strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled"); err == nil {
		_, rest, _ := strings.Cut(string(b), "[")
		m.ShmemHuge, _, _ = strings.Cut(rest, "]")
	}
	return m
}

func (m machine) String() string {
	return fmt.Sprintf("cpu %s, %d CPUs, GOMAXPROCS %d\n%s, %s, write-back by %s, huge pages on tmpfs: %s",
		m.CPU, m.CPUs, m.GOMAXPROCS, m.Go, m.OS, m.WriteBack, m.ShmemHuge)
}
