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

// checkGoldens has the API server look at what the chart renders in each of its cases, and at the manifest for those without helm, as if they
// were applied: unknown fields and wrong values are errors there.
func checkGoldens(ctx context.Context, t *testing.T, s *clusterFixture) {
	cases, err := filepath.Glob(repoRoot + "/test/external/chart/testdata/*.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("there are no golden cases: %v", err)
	}
	cases = append(cases, repoRoot+"/deploy/podgauge.yaml")
	refused := 0
	for _, file := range cases {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifest, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s.createNamespaces(ctx, t, string(manifest))
			if _, err := s.Apply(ctx, string(manifest), "--server-side", "--dry-run=server", "--validate=strict"); err != nil {
				refused++
				t.Error(err)
			}
		})
	}
	// It would say so: a field that there is not, and a value that cannot be, are refused.
	manifest, err := os.ReadFile(repoRoot + "/deploy/podgauge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"minReadySecond: 5", "minReadySeconds: five"} {
		broken := strings.Replace(string(manifest), "minReadySeconds: 5", wrong, 1)
		if _, err := s.Apply(ctx, broken, "--server-side", "--dry-run=server", "--validate=strict"); err == nil || !strings.Contains(err.Error(), "minReadySecond") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	printMeasurement(t, "golden cases that the API server takes", fmt.Sprintf("%d of %d", len(cases)-refused, len(cases)))
}

var namespaced = regexp.MustCompile(`(?m)^  namespace: (\S+)$`)

// createNamespaces makes the namespaces that a manifest speaks of, since what is not applied is not there.
func (s *clusterFixture) createNamespaces(ctx context.Context, t *testing.T, manifest string) {
	t.Helper()
	for _, match := range namespaced.FindAllStringSubmatch(manifest, -1) {
		s.apply(ctx, t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, match[1]))
	}
}
