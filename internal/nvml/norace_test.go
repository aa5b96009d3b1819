//go:build !race

package nvml

const raceDetector = false
