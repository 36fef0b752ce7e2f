//go:build !race

package hashmap_test

const raceEnabled = false
