package peers

import (
	"os"
	"regexp"
	"testing"
)

// TestReadmeFigures checks that make bench-peers wrote each figure of README.md's table to docs/contributing/benchmarks.md.
func TestReadmeFigures(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	results, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?s)<!-- peers -->.*<!-- /peers -->`).Find(results)
	table = regexp.MustCompile(` \([\d.]+\) MB`).ReplaceAll(table, []byte(" MB")) // without the anonymous part
	rows := regexp.MustCompile("(?m)^\\|.*`make bench-peers` \\|$").FindAll(readme, -1)
	figure := regexp.MustCompile(`\b[\d.]+ (MB|ms|NVML calls)`)
	checked := 0
	for _, row := range rows {
		for _, want := range figure.FindAll(row, -1) {
			checked++
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(string(want))).Match(table) {
				t.Errorf("%s of README.md is not in %s", want, page)
			}
		}
	}
	if checked < 5 {
		t.Errorf("figures in README.md: got %d, want at least 5", checked)
	}
}
