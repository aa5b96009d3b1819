package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Timings returns the times of a capture's calls as a table in Markdown, the
// function with the highest median first.
func (f *File) Timings() string {
	micros := map[string][]float64{}
	model, driver := "unknown GPU", "unknown"
	for key, a := range f.Answers {
		function := Function(key)
		if len(a.Micros) > 0 && strings.HasPrefix(function, "nvml") {
			micros[function] = append(micros[function], a.Micros...)
		}
		switch {
		case key == "gpu0 nvmlDeviceGetName" && len(a.values) > 0:
			model = a.values[0].String()
		case key == "nvmlSystemGetDriverVersion" && len(a.values) > 0:
			driver = a.values[0].String()
		}
	}
	for _, times := range micros {
		slices.Sort(times)
	}
	var page strings.Builder
	fmt.Fprintf(&page, "%s, driver %s, %s, podgauge %s:\n\n", model, driver, f.Arch, f.Podgauge)
	page.WriteString("|function|calls|median (µs)|maximum (µs)|\n|---|---|---|---|\n")
	median := func(function string) float64 { return micros[function][len(micros[function])/2] }
	for _, function := range slices.SortedFunc(maps.Keys(micros), func(a, b string) int {
		return cmp.Or(cmp.Compare(median(b), median(a)), cmp.Compare(a, b))
	}) {
		times := micros[function]
		fmt.Fprintf(&page, "|`%s`|%d|%.0f|%.0f|\n", function, len(times), median(function), times[len(times)-1])
	}
	return page.String()
}
