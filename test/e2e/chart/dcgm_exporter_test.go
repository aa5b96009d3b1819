package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// dcgmExporterValues are values for dcgm-exporter's chart beside podgauge.
const dcgmExporterValues = chartDir + "/examples/dcgm-exporter/values.yaml"

// TestDCGMExporterValues checks that the values name fields of the recording rules, and that dcgm-exporter's chart, in the folder of
// PODGAUGE_PEERS, has these fields and no labels of pods.
func TestDCGMExporterValues(t *testing.T) {
	text := testfile.Read(t, dcgmExporterValues)
	var values struct {
		CustomMetrics string
		Arguments     []string
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &values))
	rules := testfile.Read(t, root+"/deploy/rules/podgauge.profiling.yaml")
	lines := strings.Split(strings.TrimSpace(values.CustomMetrics), "\n")
	for _, line := range lines {
		field, _, _ := strings.Cut(line, ",")
		if !regexp.MustCompile(`^\w+, +gauge, [^,]+\.$`).MatchString(line) || !strings.Contains(rules, "("+field+"[") {
			t.Errorf("got %q, want a field of the rules", line)
		}
	}
	if len(lines) != 8 {
		t.Errorf("got %d fields, want 8", len(lines))
	}

	peers := os.Getenv("PODGAUGE_PEERS")
	if peers == "" {
		return
	}
	objects, _, err := renderFolder(filepath.Join(peers, "dcgm-exporter", "deployment"), "v1.37.0", text)
	require.NoError(t, err)
	daemonSets := decodeAll[apps.DaemonSet](t, objects)
	if len(daemonSets) != 1 || !slices.Equal(daemonSets[0].Spec.Template.Spec.Containers[0].Args, values.Arguments) {
		t.Errorf("got %v, want the arguments %q", daemonSets, values.Arguments)
	}
	counters := []string{}
	for _, m := range decodeAll[core.ConfigMap](t, objects) {
		counters = append(counters, strings.TrimSpace(m.Data["metrics"]))
	}
	if !slices.Equal(counters, []string{strings.TrimSpace(values.CustomMetrics)}) {
		t.Errorf("counters: got %q", counters)
	}
}
