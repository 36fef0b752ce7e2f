package main

// reference is a published or measured system to compare throughput with.
type reference struct {
	about string
	keys  uint64
	mops  map[cell]float64
}

// cell is a workload that several engines run.
type cell struct {
	Value      int `json:"value"`
	Mix        mix `json:"mix"`
	Goroutines int `json:"goroutines"`
}

var (
	writes = mix{0, 1, 1}
	mixed  = mix{2, 1, 1}
	reads  = mix{18, 1, 1}
)

var references = map[string]reference{
	"montage": {
		"Montage's hash map in C++, on a two-core machine with tmpfs; its clock has a thread besides those counted",
		1_000_000,
		map[cell]float64{
			{1024, writes, 1}: 0.84, {1024, writes, 2}: 1.56,
			{1024, mixed, 1}: 0.89, {1024, mixed, 2}: 2.02,
			{1024, reads, 1}: 1.19, {1024, reads, 2}: 2.17,
			{64, writes, 1}: 1.11, {64, writes, 2}: 2.01,
			{64, mixed, 1}: 1.27, {64, mixed, 2}: 2.23,
			{64, reads, 1}: 1.48, {64, reads, 2}: 2.83,
		},
	},
	"none": {},
}
