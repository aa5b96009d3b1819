//go:build race

package podresources

// raceEnabled says that the race detector is on, with which everything takes ten times
// as long.
const raceEnabled = true
