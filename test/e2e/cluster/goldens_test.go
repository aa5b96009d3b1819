//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// checkGoldens applies each golden file of the chart, and the manifest without helm, as a server-side dry run.
// The API server rejects unknown fields and invalid values.
func checkGoldens(ctx context.Context, t *testing.T, s *clusterFixture) {
	cases, err := filepath.Glob(repoRoot + "/test/e2e/chart/testdata/*.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	cases = append(cases, repoRoot+"/deploy/podgauge.yaml")
	rejected := 0
	for _, file := range cases {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifest, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s.createNamespaces(ctx, t, string(manifest))
			if _, err := s.Apply(ctx, string(manifest), "--server-side", "--dry-run=server", "--validate=strict"); err != nil {
				rejected++
				t.Error(err)
			}
		})
	}
	// Check that the dry run rejects an unknown field and an invalid value.
	manifest, err := os.ReadFile(repoRoot + "/deploy/podgauge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"minReadySecond: 5", "minReadySeconds: five"} {
		broken := strings.Replace(string(manifest), "minReadySeconds: 5", wrong, 1)
		if _, err := s.Apply(ctx, broken, "--server-side", "--dry-run=server", "--validate=strict"); err == nil || !strings.Contains(err.Error(), "minReadySecond") {
			t.Errorf("dry run with %s: got error %v, want an error with the field", wrong, err)
		}
	}
	printMeasurement(t, "golden cases that the API server accepts", fmt.Sprintf("%d of %d", len(cases)-rejected, len(cases)))
}

var namespaced = regexp.MustCompile(`(?m)^  namespace: '?([^\s']+)'?$`)

// createNamespaces creates the namespaces of a manifest, because a dry run creates none.
func (s *clusterFixture) createNamespaces(ctx context.Context, t *testing.T, manifest string) {
	t.Helper()
	for _, match := range namespaced.FindAllStringSubmatch(manifest, -1) {
		s.apply(ctx, t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, match[1]))
	}
}
