package openmetrics

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	reliabilityFile  = "../../../deploy/rules/podgauge.reliability.yaml"
	reliabilityTests = "../../../deploy/rules/podgauge-reliability_test.yaml"
)

// TestReliabilityRules runs the tests of the rules without promtool.
func TestReliabilityRules(t *testing.T) {
	runExprTests(t, reliabilityTests, append(recordingsOf(t, rulesFile), rulesOf(t, reliabilityFile)...))
}

// TestReliabilityRuleNames checks that the rules have podgauge's families and labels, and that their names have the labels.
func TestReliabilityRuleNames(t *testing.T) {
	families := readCatalogue(t)
	families.addRecorded(rulesOf(t, reliabilityFile)) // rules read themselves and later ones
	for _, r := range rulesOf(t, reliabilityFile) {
		families.checkRecording(t, r, levelLabels(r.Record))
	}
}

// TestFailuresAreNotOfApplications checks that all Xids of applications, and no others, are excluded from failures.
func TestFailuresAreNotOfApplications(t *testing.T) {
	excluded := regexp.MustCompile(`reason!~"(unproven[^"]*)"`).FindAllStringSubmatch(testfile.Read(t, reliabilityFile), -1)
	if len(excluded) != 2 || excluded[0][1] != excluded[1][1] {
		t.Fatalf("got %q, want the same reasons twice", excluded)
	}
	pattern := regexp.MustCompile("^(?:" + excluded[0][1] + ")$")
	for number, row := range xid.Xids {
		if reason := fmt.Sprint("xid_", number); pattern.MatchString(reason) != (row.Origin == "application") {
			t.Errorf("%s, of origin %q: excluded: %v", reason, row.Origin, pattern.MatchString(reason))
		}
	}
}

// TestReliabilityOfLogs compares the rules with logs of random events: faults, recoveries, restarts of podgauge, reboots, swapped GPUs,
// missing scrapes and retirements. Times that podgauge's counters have are exact; others are off by a scrape and an evaluation for each
// change. Numbers of failures and replacements are exact.
func TestReliabilityOfLogs(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			checkLog(t, newLog(seed))
		})
	}
}

func checkLog(t *testing.T, nodes []*nodeLog) {
	t.Helper()
	h := newHistory()
	for series, values := range scrapeLog(nodes) {
		h.add(t, series, strings.Join(values, " "), logScrapes*time.Second)
	}
	h.evaluate(t, append(recordingsOf(t, rulesFile), rulesOf(t, reliabilityFile)...), logEvaluation*time.Second, logDuration*time.Second)
	sums := func(name, by string) map[string]float64 {
		found := map[string]float64{}
		for _, s := range h.query(t, fmt.Sprintf("sum by (%s) (sum_over_time(%s[6h]))", by, name), logDuration*time.Second) {
			key := lossKey{s.Metric.Get("node"), s.Metric.Get("class"), s.Metric.Get("reason"), s.Metric.Get("namespace"), false}
			found[key.String()] = s.F
		}
		return found
	}
	check := func(name string, got map[string]float64, want map[string]*loss) {
		for key := range got {
			at(want, key)
		}
		for key, w := range want {
			if off := got[key] - float64(w.seconds); max(off, -off) > float64(w.tolerance) {
				t.Errorf("%s: %s: got %g, want %d ± %d", name, key, got[key], w.seconds, w.tolerance)
			}
		}
	}
	want := measure(nodes)
	const level = "node_model_driver_version_chassis_serial:podgauge_gpu_"
	check("lost", sums("node_class_reason_namespace_model_driver_version_chassis_serial:podgauge_gpu_seconds_lost:sum1m",
		"node, class, reason, namespace"), want.lost)
	check("in service", sums(level+"seconds_in_service:sum1m", "node"), want.inService)
	check("retired", sums(level+"seconds_retired:sum1m", "node"), want.retired)
	check("failed", sums(level+"seconds_failed:sum1m", "node"), want.failed)
	check("failures", sums("node_reason_model_driver_version_chassis_serial:podgauge_gpu_failures:count1m", "node"), want.failures)
	check("replacements", sums(level+"replacements:count1m", "node"), want.replacements)
}
