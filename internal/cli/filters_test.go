package cli

import (
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/spf13/pflag"
)

func TestIncidentQuery(t *testing.T) {
	for args, want := range map[string]string{
		"": "", "-d 1 -n serving --pod=llm-0 --since 24h --limit=1": "device=1&limit=1&namespace=serving&pod=llm-0&since=24h",
		"--limit=0": `--limit "0": expected a number from 1 to 1000`, "--pod=": `--pod "": expected a value`, "--since=x": `--since "x": expected a time (2006-01-02T15:04:05Z) or a duration (90m, 24h)`,
	} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		filters := AddIncidentFilters(f)
		require.NoError(t, f.Parse(strings.Fields(args)))
		query, err := IncidentQuery(f, filters)
		got := query.Encode()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", args, got, want)
		}
	}
}
