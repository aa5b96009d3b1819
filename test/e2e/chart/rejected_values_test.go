package chart

import (
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestRejectedValues checks the errors for the values in testdata/rejected_values.txt.
func TestRejectedValues(t *testing.T) {
	_, rows, _ := strings.Cut(testfile.Read(t, "testdata/rejected_values.txt"), "==\n")
	for row := range strings.SplitSeq(rows, "==\n") {
		values, want, _ := strings.Cut(strings.TrimSuffix(row, "\n"), "\n--\n")
		_, _, err := renderChart(values)
		expect.Error(t, err, want, values)
	}
}

// TestSurgeOfOlderKubernetes checks that a surge requires a cluster whose kubelets may be 1.37.
func TestSurgeOfOlderKubernetes(t *testing.T) {
	for version, want := range map[string]string{"v1.36.3": "kubelets up to 1.36 drop all GPUs", "v1.37.0-gke.100": ""} {
		_, _, err := renderChartFor(version, `updateStrategy: {rollingUpdate: {maxSurge: 1}}`)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want error %q", version, err, want)
		}
	}
	if _, _, err := renderChartFor(olderVersion); err != nil {
		t.Errorf("without surge: got %v", err)
	}
}
