//go:build race

package collect

// raceDetector allocates on its own account.
const raceDetector = true
