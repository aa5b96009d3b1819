//go:build !race

package collect

const raceDetector = false
