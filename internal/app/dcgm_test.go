package app

import (
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// TestDCGMFamiliesAreMade: each exported dcgm-exporter family is made of rows of the NVML backend, and docs/reference/peers.md lists them.
func TestDCGMFamiliesAreMade(t *testing.T) {
	rows := map[string]bool{}
	for _, m := range metric.Metrics() {
		rows[m.RowName()] = true
	}
	page, err := os.ReadFile("../../docs/reference/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range exporter.DCGMFamilies {
		for _, row := range f.Sources {
			if !rows[row] {
				t.Errorf("%s is made of %s, which is no row of NVML's", f.Name, row)
			}
			if name, _, _ := strings.Cut(row, "{"); !strings.Contains(string(page), name) {
				t.Errorf("docs/reference/peers.md does not name %s", name)
			}
		}
		if !strings.Contains(string(page), "`"+f.Name+"`") {
			t.Errorf("docs/reference/peers.md does not name %s", f.Name)
		}
	}
}
