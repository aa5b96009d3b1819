package nvmltest

import (
	"embed"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed busy
var busyFiles embed.FS

// Lines of two scenarios and their series. A test requires a series for each
// metric.
var (
	// BusyGPU has all readings of a GPU, each with a different value.
	BusyGPU    = busyLines("busy.scenario")
	BusyValues = busySeries("busy.prom")
	// OldMemoryScenario replaces the SRAM status by the counters of GPUs before
	// Ampere, and adds the fans of a board.
	OldMemoryScenario = busyLines("old_memory.scenario")
	OldDriverValues   = busySeries("old_memory.prom") // additional to BusyValues
)

// busyLines returns the lines of an embedded file without comments.
func busyLines(name string) []string {
	text, err := busyFiles.ReadFile(path.Join("busy", name))
	if err != nil {
		panic(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return slices.Clip(slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "#") }))
}

// busySeries returns the values of an embedded file by series.
func busySeries(name string) map[string]float64 {
	values := map[string]float64{}
	for _, line := range busyLines(name) {
		series, number, _ := strings.Cut(line, " ")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			panic(err)
		}
		values[series] = v
	}
	return values
}
