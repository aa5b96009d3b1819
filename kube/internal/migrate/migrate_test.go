package migrate_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/kube/internal/migrate"
	"github.com/podgauge/podgauge/test/helpers/require"
)

var update = flag.Bool("update", false, "write the golden files")

// object is a mapping of a JSON document.
type object = map[string]any

// translate returns the report on a dashboard with a panel per query.
func translate(t *testing.T, mig bool, queries ...string) *migrate.Report {
	t.Helper()
	var panels, variables []object
	for _, q := range queries {
		if strings.HasPrefix(q, "label_values") || strings.HasPrefix(q, "query_result") {
			variables = append(variables, object{"type": "query", "name": "v", "query": q})
		} else {
			panels = append(panels, object{"title": "p", "targets": []object{{"expr": q}}})
		}
	}
	data, err := json.Marshal(object{"panels": panels, "templating": object{"list": variables}})
	require.NoError(t, err)
	return migrate.Files([]*migrate.File{{Name: "d.json", Data: data}}, migrate.Options{MIG: mig})
}

// dashboardSource is a public dashboard or file of rules, with its queries of dcgm-exporter's series.
type dashboardSource struct {
	name, url string
	queries   []string
}

// publicQueries returns the queries of testdata/public.txt.
func publicQueries(t *testing.T) (all []dashboardSource) {
	t.Helper()
	data, err := os.ReadFile("testdata/public.txt")
	require.NoError(t, err)
	for section := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		lines := strings.Split(section, "\n")
		all = append(all, dashboardSource{strings.TrimPrefix(lines[0], "# "), strings.TrimPrefix(lines[1], "# "), lines[2:]})
	}
	return all
}

// TestPublicQueries compares the report on public dashboards and rules with testdata/public.golden.
func TestPublicQueries(t *testing.T) {
	var got strings.Builder
	for _, d := range publicQueries(t) {
		r := translate(t, false, d.queries...)
		translated := 0
		fmt.Fprintf(&got, "# %s\n# %s\n", d.name, d.url)
		for _, q := range r.Queries {
			fmt.Fprintf(&got, "- %s\n", q.Text)
			if q.Translation != "" {
				translated++
				fmt.Fprintf(&got, "+ %s\n", q.Translation)
			}
			for _, reason := range q.Reasons {
				fmt.Fprintf(&got, "! %s\n", reason)
			}
		}
		fmt.Fprintf(&got, "%d queries, %d translated\n\n", len(r.Queries), translated)
		if len(r.Queries) != len(d.queries) || len(r.Errors) > 0 {
			t.Errorf("%s: %d of %d queries in the report; errors %q", d.name, len(r.Queries), len(d.queries), r.Errors)
		}
	}
	const golden = "testdata/public.golden"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	if got.String() != string(want) {
		t.Errorf("the report differs from %s; if it should, run the test with -update and read the diff:\n%s", golden, got.String())
	}
}
