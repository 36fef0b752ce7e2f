//go:build !race

package payload_test

// underRace says that everything takes many times as long.
const underRace = false
