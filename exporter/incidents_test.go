package exporter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestHealthState(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(2)
		d.allocate("GPU-0=team/train/main")
		bad := &d.statuses[0]
		bad.Healthy, bad.Health, bad.Flaps, bad.Reason, bad.Since = false, device.Recovering, 3, "xid_79", time.Unix(1_700_000_000, 0)
		then := time.Unix(1_800_000_000, 0)
		bad.Xids = []device.Xid{{Code: 79, Count: 1, Last: then}, {Code: 145, Count: 4, Last: then, Nonfatal: true}}
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		withXid := func(xid string) string {
			return strings.Replace(seriesLabels("GPU-0", "0", "", "", ""), `}`, `,xid="`+xid+`"}`, 1)
		}
		assertSeries(t, text, "nvidia_gpu_xid_errors_total"+withXid("145")+" 4")
		assertSeries(t, text, "nvidia_gpu_xid_last_timestamp_seconds"+withXid("79")+" 1.8e+09")
		assertAbsent(t, text, "nvidia_gpu_xid_last_timestamp_seconds"+withXid("145")) // nonfatal
		state := func(gpu, state string) string {
			return `nvidia_gpu_health_state` + strings.Replace(seriesLabels("GPU-"+gpu, gpu, "", "", ""), `,uuid=`, `,state="`+state+`",uuid=`, 1)
		}
		assertSeries(t, text, state("0", "recovering")+" 1")
		for _, other := range []string{"healthy", "suspect", "unhealthy"} {
			assertSeries(t, text, state("0", other)+" 0")
		}
		assertSeries(t, text, state("1", "healthy")+" 1")
		assertSeries(t, text, "nvidia_gpu_health_since_timestamp_seconds"+seriesLabels("GPU-0", "0", "", "", "")+" 1.7e+09")
		assertAbsent(t, text, "nvidia_gpu_health_since_timestamp_seconds"+seriesLabels("GPU-1", "1", "", "", "")) // not checked yet
		assertSeries(t, text, "nvidia_gpu_health_flaps_total"+seriesLabels("GPU-0", "0", "", "", "")+" 3")
		assertSeries(t, text, "nvidia_gpu_health_flaps_total"+seriesLabels("GPU-1", "1", "", "", "")+" 0")
		assertSeries(t, text, "podgauge_incidents 0")
		assertAbsent(t, text, "podgauge_incident_store_up")
		assertAbsent(t, text, "podgauge_state_up")
	})
}

// withReason adds a reason to labels.
func withReason(labels, reason string) string {
	return strings.Replace(labels, `,uuid=`, `,reason="`+reason+`",uuid=`, 1)
}

func TestIncidents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		then := time.Unix(1_700_000_000, 0)
		owner := device.Owner{Namespace: "team", Pod: "train", Container: `m"ain`}
		known := incident.Snapshot{
			Incidents: make([]incident.Incident, 4),
			Devices: []incident.EventCount{
				{Device: "GPU-0", GPU: "GPU-0", Index: 5, Reason: "xid_79", Count: 2, Last: then}, // recorded with a different index
				{Device: "MIG-9", GPU: "GPU-9", Index: 3, Reason: "xid_94", Count: 1, Last: then},
				{Device: "GPU-8", Reason: "lost", Count: 1, Last: then},
			},
			Affected: []incident.EventCount{
				{Device: "GPU-0", GPU: "GPU-0", Owner: owner, Reason: "xid_79", Count: 2, Last: then},
				{Device: "MIG-9", GPU: "GPU-9", Index: 3, Owner: owner, Reason: "xid_94", Count: 1, Last: then},
			},
		}
		d.node.Incidents.Set(known)
		d.node.StateFile.Set(state.WriteStatus{Used: true})
		e := New(d.sources(), Options{})
		text := scrape(t, newHandler(e))
		removed := `{container="%s",gpu="3",mig_uuid="MIG-9",namespace="%s",pod="%s",reason="xid_94",uuid="GPU-9"} 1`
		for _, series := range []string{
			"nvidia_gpu_incidents_total" + withReason(seriesLabels("GPU-0", "0", "", "", ""), "xid_79") + " 2",
			"nvidia_gpu_incident_last_timestamp_seconds" + withReason(seriesLabels("GPU-0", "0", "", "", ""), "xid_79") + " 1.7e+09",
			"nvidia_gpu_incidents_total" + fmt.Sprintf(removed, "", "", ""),
			"nvidia_gpu_incidents_total" + withReason(seriesLabels("GPU-8", "0", "", "", ""), "lost") + " 1",
			"nvidia_gpu_allocation_device_failures_total" + withReason(seriesLabels("GPU-0", "0", "team", "train", `m\"ain`), "xid_79") + " 2",
			"nvidia_gpu_allocation_device_failures_total" + fmt.Sprintf(removed, `m\"ain`, "team", "train"),
			"nvidia_gpu_allocation_device_failure_last_timestamp_seconds" + withReason(seriesLabels("GPU-0", "0", "team", "train", `m\"ain`), "xid_79") + " 1.7e+09",
			"podgauge_incidents 4", "podgauge_allocation_device_failures_dropped 0", "podgauge_incident_store_up 1", "podgauge_state_up 1",
		} {
			assertSeries(t, text, series)
		}

		// Both stores fail, and another incident is recorded.
		assertAbsent(t, text, "nvidia_gpu_allocation_application_errors_total")
		known.Affected = []incident.EventCount{
			{Device: "GPU-0", GPU: "GPU-0", Owner: owner, Reason: "xid_31", Count: 3, Last: then},
			{Device: "GPU-0", GPU: "GPU-0", Owner: owner, Reason: "xid_63", Count: 1, Last: then},
		}

		d.node.StateFile.Set(state.WriteStatus{Used: true, Err: errors.New("disk full")})
		known.Devices = []incident.EventCount{{Device: "GPU-0", Reason: "xid_79", Count: 3, Last: then}}
		d.node.Incidents.Set(known)
		d.expireCollection()
		text = scrape(t, newHandler(e))
		assertSeries(t, text, "nvidia_gpu_incidents_total"+withReason(seriesLabels("GPU-0", "0", "", "", ""), "xid_79")+" 3")
		assertSeries(t, text, "podgauge_incident_store_up 0")
		assertSeries(t, text, "podgauge_state_up 0")
		assertAbsent(t, text, `reason="lost"`)
		for _, series := range []string{
			"nvidia_gpu_allocation_application_errors_total" + withReason(seriesLabels("GPU-0", "0", "team", "train", `m\"ain`), "xid_31") + " 3",
			"nvidia_gpu_allocation_application_error_last_timestamp_seconds" + withReason(seriesLabels("GPU-0", "0", "team", "train", `m\"ain`), "xid_31") + " 1.7e+09",
			"nvidia_gpu_allocation_device_failures_total" + withReason(seriesLabels("GPU-0", "0", "team", "train", `m\"ain`), "xid_63") + " 1",
		} {
			assertSeries(t, text, series)
		}
		assertAbsent(t, text, "nvidia_gpu_allocation_device_failures_total"+withReason(seriesLabels("GPU-0", "0", "team", "train", `m\"ain`), "xid_31"))

		// Without a store.
		d.node.StateFile.Set(state.WriteStatus{})
		d.expireCollection()
		assertAbsent(t, scrape(t, newHandler(e)), "podgauge_incident_store_up")
	})
}

// newFailures returns n failures of containers, oldest first.
func newFailures(n int) (list []incident.EventCount) {
	for i := range n {
		list = append(list, incident.EventCount{
			Device: "GPU-0", GPU: "GPU-0", Reason: "xid_79", Count: 1, Last: time.Unix(int64(i), 0),
			Owner: device.Owner{Namespace: "n", Pod: fmt.Sprint("p", i), Container: "c"},
		})
	}
	return list
}

// newErrors returns n application errors, all newer than device failures.
func newErrors(n int) []incident.EventCount {
	list := newFailures(n)
	for i := range list {
		list[i].Reason, list[i].Last = "xid_31", time.Unix(int64(100_000+i), 0)
	}
	return list
}

func TestNewestFailuresAreShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(0)
		affected := slices.Concat(newErrors(maxShownFailures), newFailures(maxShownFailures+7))
		d.node.Incidents.Set(incident.Snapshot{Affected: affected})
		text := scrape(t, newHandler(New(d.sources(), Options{})))
		if n := strings.Count(text, "\nnvidia_gpu_allocation_device_failures_total{"); n != maxShownFailures {
			t.Errorf("got %d failures, want %d", n, maxShownFailures)
		}
		assertAbsent(t, text, `pod="p6",reason="xid_79"`)
		for _, pod := range []int{7, maxShownFailures + 6} {
			const failure = `nvidia_gpu_allocation_device_failures_total{container="c",gpu="0",mig_uuid="",namespace="n",pod="p%d",reason="xid_79",uuid="GPU-0"} 1`
			assertSeries(t, text, fmt.Sprintf(failure, pod))
		}
		assertSeries(t, text, "podgauge_allocation_device_failures_dropped 7")
	})
}

func TestMissingGPUs(t *testing.T) {
	statuses := newScrapeFixture(3).statuses
	removed := slices.Clone(statuses)
	removed[1].Gone = true
	for _, c := range []struct {
		expected              int
		statuses              []device.Status
		wantExpected, missing string // "": absent
	}{
		{0, statuses, "", ""},
		{3, statuses, " 3", " 0"},
		{2, statuses, " 2", " 0"},
		{3, removed, " 3", " 1"},
		{8, removed, " 8", " 6"},
		{8, nil, " 8", ""},
		{8, []device.Status{}, " 8", " 8"},
	} {
		bubble.Test(t, func(t *testing.T) {
			d := newScrapeFixture(0)
			d.node.Settings.Set(config.Settings{ExpectedGPUs: c.expected})
			d.node.Devices = device.Inventory{}
			if c.statuses != nil {
				d.node.Devices.Set(c.statuses)
			}
			text := scrape(t, newHandler(New(d.sources(), Options{})))
			for family, value := range map[string]string{"podgauge_expected_gpus": c.wantExpected, "podgauge_missing_gpus": c.missing} {
				if value == "" {
					assertAbsent(t, text, family)
				} else {
					assertSeries(t, text, family+value)
				}
			}
		})
	}
}
