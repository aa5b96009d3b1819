package repo

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// healthChecks are NVIDIA's published checks, and podgauge's counterparts.
type healthChecks struct {
	Source, Date string
	Domains      map[string]struct{ Checks, Unread int }
	Checks       []healthCheck
}

type healthCheck struct {
	ID, Domain, Read string
	Signals, Actions []string
	Thresholds       map[string]string
	Severity         string
	Subject          string // a regular expression; empty for an Xid
	Podgauge         counterpart
	Why              string
}

// counterpart is what podgauge has for a check.
type counterpart struct {
	Xid                      uint64
	Class, State, Action     string // of the Xid
	Reasons, Metrics, Alerts []string
}

func readHealthChecks(t *testing.T) (all healthChecks) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(testfile.Read(t, "testdata/nvidia_health_checks.yaml")))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&all))
	return all
}

// xidState returns the effect of an Xid without a policy.
func xidState(number uint64) string {
	event, _ := xid.Event(number)
	switch {
	case xid.ClassOf(number) == xid.Memory:
		return "unhealthy without a recovery action"
	case event.Recovery == device.RecoveryAfterReset:
		return "unhealthy"
	case event.Recovery == device.RecoveryChecksPass:
		return "suspect until a check"
	}
	return "healthy"
}

// agrees reports whether podgauge draws the consequence that NVIDIA draws: a
// critical check is an unhealthy device with the first action after the drain,
// all others leave it healthy.
func (c healthCheck) agrees() bool {
	switch {
	case c.Podgauge.Xid == 0 || c.Severity == "":
		return false
	case c.Severity == "CRITICAL":
		return c.Podgauge.State == "unhealthy" && len(c.Actions) > 1 && c.Actions[1] == c.Podgauge.Action
	}
	return c.Podgauge.State == "healthy"
}

// TestHealthChecks compares NVIDIA's checks with the code, the alerts and the metrics. A change on either side fails here until the
// difference has a reason.
func TestHealthChecks(t *testing.T) {
	all := readHealthChecks(t)
	rules, metrics := testfile.Read(t, alertsFile)+testfile.Read(t, jobsFile), testfile.Read(t, "../../docs/reference/metrics.md")
	var reasons []string
	for _, c := range collect.Checks() {
		reasons = append(reasons, c.Fault.Reason)
	}
	rows, ids := map[string]int{}, map[string]bool{}
	for _, c := range all.Checks {
		rows[c.Domain]++
		if ids[c.ID] {
			t.Errorf("%s is listed twice", c.ID)
		}
		ids[c.ID] = true
		p := c.Podgauge
		if p.Xid != 0 {
			event, _ := xid.Event(p.Xid)
			want := fmt.Sprint(event.Class, ": ", xidState(p.Xid), ", ", event.Action)
			expect.Equal(t, fmt.Sprint(p.Class, ": ", p.State, ", ", p.Action), want, c.ID)
		}
		for _, alert := range p.Alerts {
			if !strings.Contains(rules, "- alert: "+alert+"\n") {
				t.Errorf("%s: no alert %s", c.ID, alert)
			}
		}
		for _, metric := range p.Metrics {
			if !strings.Contains(metrics, "|`"+metric+"`") {
				t.Errorf("%s: no metric %s", c.ID, metric)
			}
		}
		for _, reason := range p.Reasons {
			if !slices.Contains(reasons, reason) {
				t.Errorf("%s: no check has the reason %s", c.ID, reason)
			}
		}
		if c.agrees() == (c.Why != "") {
			t.Errorf("%s: agrees is %v, why is %q: a difference needs a reason, and only a difference", c.ID, c.agrees(), c.Why)
		}
		if !slices.Contains([]string{"all", "part", "type"}, c.Read) || c.Read == "all" && c.Severity == "" ||
			c.Read == "type" && (c.Severity != "" || c.Signals != nil) {
			t.Errorf("%s: read is %q, with severity %q", c.ID, c.Read, c.Severity)
		}
	}
	total := 0
	for name, domain := range all.Domains {
		expect.Equal(t, rows[name]+domain.Unread, domain.Checks, "checks of "+name)
		total += domain.Checks
	}
	expect.Equal(t, total, 62, "checks")
	expect.Equal(t, len(rows), len(all.Domains), "domains")
}

// TestHealthChecksNameTheSubject checks that a row names all alerts and reasons of podgauge with its subject. So a row cannot say "none", or lack
// an alert, after podgauge has one. Alerts about jobs read many metrics to compare GPUs, so they are optional in a row.
func TestHealthChecksNameTheSubject(t *testing.T) {
	var metrics []string
	for _, row := range regexp.MustCompile("\\|`((?:nvidia_gpu|podgauge)_\\w+)`").FindAllStringSubmatch(testfile.Read(t, "../../docs/reference/metrics.md"), -1) {
		metrics = append(metrics, row[1])
	}
	if len(metrics) < 100 {
		t.Fatalf("got %d metrics, want at least 100", len(metrics))
	}
	for _, c := range readHealthChecks(t).Checks {
		if c.Podgauge.Xid != 0 {
			continue
		}
		subject, err := regexp.Compile(c.Subject)
		require.NoError(t, err)
		p := c.Podgauge
		if c.Subject == "" || len(p.Metrics) > 0 && !slices.ContainsFunc(p.Metrics, subject.MatchString) {
			t.Errorf("%s: subject %q matches none of its metrics", c.ID, c.Subject)
		}
		for _, group := range alertGroups(t) {
			for _, alert := range group.alerts {
				if group.name != "podgauge-jobs" && subject.MatchString(alert.expression) && !slices.Contains(p.Alerts, alert.name) {
					t.Errorf("%s: %s is an alert on %s", c.ID, alert.name, c.Subject)
				}
			}
		}
		for _, check := range collect.Checks() {
			if reason := check.Fault.Reason; subject.MatchString(reason) && !slices.Contains(p.Reasons, reason) {
				t.Errorf("%s: %s is a reason on %s", c.ID, reason, c.Subject)
			}
		}
		if i := slices.IndexFunc(metrics, subject.MatchString); i >= 0 && p.Metrics == nil {
			t.Errorf("%s: %s is a metric on %s", c.ID, metrics[i], c.Subject)
		}
	}
}

// TestHealthChecksPage checks that docs/reference/health-checks.md has the comparison.
func TestHealthChecksPage(t *testing.T) {
	docs.CheckTables(t, *update, "../../docs/reference/health-checks.md", map[string]string{
		"checks": comparisonTable(readHealthChecks(t)), "counts": countsTable(readHealthChecks(t)),
	})
}

func comparisonTable(all healthChecks) string {
	var table strings.Builder
	table.WriteString("|check|NVIDIA|podgauge|reason for the difference|\n|---|---|---|---|\n")
	for _, c := range all.Checks {
		nvidia := c.Severity
		if c.Severity == "" {
			nvidia = "unread"
		}
		if len(c.Actions) > 0 {
			nvidia += ": " + strings.Join(c.Actions, " → ")
		}
		for _, name := range slices.Sorted(maps.Keys(c.Thresholds)) {
			nvidia += fmt.Sprintf("; `%s` %s", name, c.Thresholds[name])
		}
		fmt.Fprintf(&table, "|`%s`|%s|%s|%s|\n", c.ID, nvidia, c.Podgauge, c.Why)
	}
	return table.String()
}

func (p counterpart) String() string {
	var parts []string
	if p.Xid != 0 {
		text := fmt.Sprintf("class `%s`: %s", p.Class, p.State)
		if p.Action != "" {
			text += ", action `" + p.Action + "`"
		}
		parts = append(parts, text)
	}
	for _, reason := range p.Reasons {
		parts = append(parts, "unhealthy, `"+reason+"`")
	}
	for _, alert := range p.Alerts {
		parts = append(parts, fmt.Sprintf("alert [`%s`](../runbooks/%s.md)", strings.TrimPrefix(alert, "Podgauge"), alert))
	}
	for _, metric := range p.Metrics {
		parts = append(parts, "`"+metric+"`")
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, "; ")
}

// countsTable counts the checks by how much of them was readable, and the Xids that podgauge acts on.
func countsTable(all healthChecks) string {
	read := map[string]int{}
	unread, agree := 0, 0
	for _, domain := range all.Domains {
		unread += domain.Unread
	}
	for _, c := range all.Checks {
		read[c.Read]++
		if c.agrees() {
			agree++
		}
	}
	acting := 0
	for number := range xid.Xids {
		if number != 154 && xidState(number) != "healthy" {
			acting++
		}
	}
	return fmt.Sprintf("|checks|number|\n|---|---|\n|published|62|\n|readable as a whole|%d|\n|readable in part|%d|\n|known by name|%d|\n"+
		"|unread|%d|\n|same verdict|%d|\n|critical codes of NVIDIA|%d|\n|Xids that podgauge acts on, without 154|%d|\n",
		read["all"], read["part"], read["type"], unread, agree, all.Domains["xid"].Checks-2, acting)
}
