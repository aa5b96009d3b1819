package e2e

import (
	"os/exec"
	"testing"
)

// TestRules has real promtool, of the release that is installed here, evaluate the alerts over recorded series. test/external/openmetrics
// does so by Prometheus' engine of today.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "podgauge.rules.yaml"}, {"test", "rules", "podgauge_test.yaml"}} {
		promtool := exec.CommandContext(t.Context(), "promtool", args...)
		promtool.Dir = "../../deploy/rules"
		if said, err := promtool.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, said)
		}
	}
}
