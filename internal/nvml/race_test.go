//go:build race

package nvml

// raceDetector allocates on its own account.
const raceDetector = true
