package e2e

import (
	"os/exec"
	"testing"
)

// TestRules checks the alerts with the installed promtool. test/e2e/openmetrics uses the current engine of Prometheus.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "podgauge.rules.yaml"}, {"test", "rules", "podgauge_test.yaml"}} {
		promtool := exec.CommandContext(t.Context(), "promtool", args...)
		promtool.Dir = "../../deploy/rules"
		if out, err := promtool.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}
