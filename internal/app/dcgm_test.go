package app

import (
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// TestDCGMFamiliesAreMade: each exported dcgm-exporter family is made of rows of the NVML backend, and docs/migration.md lists them.
func TestDCGMFamiliesAreMade(t *testing.T) {
	rows := map[string]bool{}
	for _, m := range metric.Metrics() {
		name := m.Name
		if len(m.Labels) == 1 {
			name += "{" + m.Labels[0].Value + "}"
		}
		rows[name] = true
	}
	page, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	for family, from := range exporter.DCGMSources() {
		for _, row := range from {
			if !rows[row] {
				t.Errorf("%s is made of %s, which is no row of NVML's", family, row)
			}
			if name, _, _ := strings.Cut(row, "{"); !strings.Contains(string(page), name) {
				t.Errorf("docs/migration.md does not name %s", name)
			}
		}
		if !strings.Contains(string(page), "`"+family+"`") {
			t.Errorf("docs/migration.md does not name %s", family)
		}
	}
}
