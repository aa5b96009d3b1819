//go:build race

package podresources

// raceEnabled reports whether the race detector, which slows tests tenfold, is enabled.
const raceEnabled = true
