package status_test

import (
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// TestSums checks that sums cover the same GPUs, and state their number if other GPUs were not read.
func TestSums(t *testing.T) {
	sums := func(n *pageFixture) string {
		stats := n.page(t).pairs("stats")
		return "Memory " + stats["Memory"] + "; Power " + stats["Power"]
	}
	n := newEmptyFixture()
	for range 3 {
		n.addGPU("NVIDIA L4", 20, "8.9")
	}
	for i, c := range []struct {
		used, total, power, limit float64
		want                      string
	}{
		{10, 20, 40, 72, "Memory 50 % of 20 GiB, 1 of 3 GPUs; Power 40 W of 72 W, 1 of 3 GPUs"},
		{5, 20, 40, -1, "Memory 38 % of 40 GiB, 2 of 3 GPUs; Power 80 W 2 of 3 GPUs"},
		{15, 20, -1, 72, "Memory 50 % of 60 GiB; Power 80 W 2 of 3 GPUs"},
	} {
		n.addReading(n.Statuses[i].ID, -1, c.used, c.total, c.power, c.limit, -1)
		if got := sums(n); got != c.want {
			t.Errorf("%d GPUs read: got %q, want %q", i+1, got, c.want)
		}
	}
	n.Statuses[2].Gone = true
	delete(n.Readings.Devices, n.Statuses[2].ID)
	if got, want := sums(n), "Memory 38 % of 40 GiB; Power 80 W"; got != want {
		t.Errorf("one GPU removed: got %q, want %q", got, want)
	}
}

func TestMissingGPUs(t *testing.T) {
	n := newEmptyFixture()
	n.addGPU("NVIDIA L4", 20, "8.9")
	n.addGPU("NVIDIA L4", 20, "8.9")
	for expected, want := range map[int]string{
		0: "headline well: All 2 devices are healthy.",
		2: "headline well: All 2 devices are healthy.",
		3: "headline warning: All 2 devices are healthy. Missing: 1 of 3 expected GPUs.",
	} {
		n.ExpectedGPUs = expected
		headline := n.page(t).first("headline")
		if got := headline.attribute("class") + ": " + headline.text(); got != want {
			t.Errorf("%d expected: got %s, want %s", expected, got, want)
		}
	}
}

func TestRetiredDevice(t *testing.T) {
	n := newEmptyFixture()
	s := n.addGPU("NVIDIA L4", 20, "8.9")
	s.Healthy, s.Health, s.Reason, s.Note = false, device.Unhealthy, "retired", "fan is <noisy>"
	n.Incidents.Incidents = []incident.Incident{
		{Reason: "retired", Note: s.Note, MarkedUnhealthy: true, Action: "replace"},
	}
	page := n.page(t)
	if got := page.first("meaning").text(); got != s.Note {
		t.Errorf("got %s", got)
	}
	if got := page.cells("incidents", "Outcome"); got[0] != "retired: "+s.Note {
		t.Errorf("got %s", got)
	}
	if got := page.cells("incidents", "Reason"); got[0] != "Retired by an operator" {
		t.Errorf("got %s", got)
	}
}

func TestIncidentDevice(t *testing.T) {
	n := newEmptyFixture()
	n.Incidents.Incidents = []incident.Incident{
		{Index: 3}, {Index: 3, Profile: "1g.10gb"}, {Index: 3, MIGDevices: make([]incident.AffectedMIGDevice, 2)},
	}
	got := strings.Join(n.page(t).cells("incidents", "Device"), "; ")
	if got != "GPU 3; GPU 3, 1g.10gb; GPU 3, 2 MIG devices" {
		t.Errorf("got %s", got)
	}
}
