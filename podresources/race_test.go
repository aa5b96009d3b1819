//go:build race

package podresources

// raced says that the race detector is on, with which everything takes ten times
// as long.
const raced = true
