//go:build race

package podresources

// raceEnabled reports whether the race detector is on, which slows tests tenfold.
const raceEnabled = true
