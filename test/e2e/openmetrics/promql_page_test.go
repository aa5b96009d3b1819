package openmetrics

import (
	"regexp"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestPromQLPage checks that the queries in docs/reference/promql.md are valid and use existing families and labels.
func TestPromQLPage(t *testing.T) {
	families := readCatalogue(t)
	queries := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(testfile.Read(t, "../../../docs/reference/promql.md"), -1)
	if len(queries) < 15 {
		t.Fatalf("got %d queries, want at least 15", len(queries))
	}
	for _, query := range queries {
		if _, wrong := families.checkExpr(query[1]); len(wrong) > 0 {
			t.Errorf("%s%q", query[1], wrong)
		}
	}
}
