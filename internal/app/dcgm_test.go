package app

import (
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// TestDCGMFamilySources checks that each dcgm-exporter family derives from rows of the NVML backend, and is listed in docs/reference/peers.md.
func TestDCGMFamilySources(t *testing.T) {
	rows := map[string]bool{}
	for _, m := range metric.Metrics() {
		rows[m.RowName()] = true
	}
	page, err := os.ReadFile("../../docs/reference/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range exporter.DCGMFields {
		for _, row := range f.Sources {
			if !rows[row] {
				t.Errorf("%s derives from %s, which is not a row of NVML", f.Name, row)
			}
			if name, _, _ := strings.Cut(row, "{"); !strings.Contains(string(page), name) {
				t.Errorf("docs/reference/peers.md lacks %s", name)
			}
		}
		if !strings.Contains(string(page), "`"+f.Name+"`") {
			t.Errorf("docs/reference/peers.md lacks %s", f.Name)
		}
	}
}
