package peers

import (
	"regexp"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestReadmeFigures checks that make bench-peers wrote each figure of README.md's table to docs/contributing/benchmarks.md.
func TestReadmeFigures(t *testing.T) {
	table := regexp.MustCompile(`(?s)<!-- peers -->.*<!-- /peers -->`).FindString(testfile.Read(t, page))
	table = regexp.MustCompile(` \([\d.]+\) MB`).ReplaceAllString(table, " MB") // without the anonymous part
	rows := regexp.MustCompile("(?m)^\\|.*`make bench-peers` \\|$").FindAllString(testfile.Read(t, "../../../README.md"), -1)
	figure := regexp.MustCompile(`\b[\d.]+ (MB|ms|NVML calls)`)
	checked := 0
	for _, row := range rows {
		for _, want := range figure.FindAllString(row, -1) {
			checked++
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(want)).MatchString(table) {
				t.Errorf("%s of README.md is not in %s", want, page)
			}
		}
	}
	if checked < 5 {
		t.Errorf("figures in README.md: got %d, want at least 5", checked)
	}
}
