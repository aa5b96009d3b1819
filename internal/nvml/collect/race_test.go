//go:build race

package collect

// raceDetector is true: the race detector allocates memory itself.
const raceDetector = true
