package status_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
)

// TestLastFault checks which incident a GPU with Xid 79 shows, with which containers. Incidents are newest first, with
// device, reason, whether it marked the device unhealthy, and pod.
func TestLastFault(t *testing.T) {
	for _, c := range []struct{ name, incidents, want string }{
		{"no incident", "", ""},
		{"the incident of the fault, not a later one", "gpu xid_45 no b, gpu xid_79 yes a, gpu xid_79 no c", "xid_79 a"},
		{"the last one, without an incident of the fault", "gpu xid_31 no b, gpu xid_13 no a", "xid_31 b"},
		{"containers of MIG devices, each once", "gpu xid_79 yes a, mig xid_79 yes b, mig xid_79 yes a", "xid_79 a b"},
		{"not of another fault of a MIG device", "mig xid_95 yes b, gpu xid_79 yes a", "xid_79 a"},
		{"not of another GPU", "other xid_79 yes a", ""},
	} {
		n := newEmptyFixture()
		s := n.addGPU("NVIDIA L4", 24)
		fail(s, "xid_79", "", time.Minute)
		for row := range strings.SplitSeq(c.incidents, ", ") {
			fields := strings.Fields(row)
			if len(fields) == 0 {
				continue
			}
			i := incident.Incident{
				Device: s.ID, GPU: s.GPU, Reason: fields[1], MarkedUnhealthy: fields[2] == "yes", Last: beforeNow(time.Minute),
				Affected: []incident.AffectedContainer{{Owner: ownerOf("lab/" + fields[3] + "/main")}},
			}
			switch fields[0] {
			case "mig":
				i.Device = "MIG-1"
			case "other":
				i.Device, i.GPU = "GPU-other", "GPU-other"
			}
			n.Incidents.Incidents = append(n.Incidents.Incidents, i)
		}
		fault := n.find(t, "", `(?s)<div class="last-fault">(.*?)</div>`)
		got := ""
		for _, match := range regexp.MustCompile(`&reason=(\w+)|<bdi>(\w+)</bdi></a>`).FindAllStringSubmatch(strings.Join(fault, ""), -1) {
			got += match[1] + match[2] + " "
		}
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestSums checks that sums cover the same GPUs, and state their number if other GPUs were not read.
func TestSums(t *testing.T) {
	check := func(n *pageFixture, want string) {
		t.Helper()
		stats := n.find(t, "", `<dt>(Memory|Power)</dt><dd><b>([^<]*)</b>(?: <span>([^<]*)</span>)?`)
		if got := strings.Join(stats, "; "); got != want {
			t.Errorf("%d GPUs read: got %q, want %q", len(n.Readings.Devices), got, want)
		}
	}
	n := newEmptyFixture()
	n.addGPU("NVIDIA L4", 20)
	if !strings.Contains(n.html(t, ""), "The device is healthy.") {
		t.Error("one GPU: no headline")
	}
	n.addGPU("NVIDIA L4", 20)
	n.addGPU("NVIDIA L4", 20)
	n.addReading(n.Statuses[0].ID, -1, 10, 20, 40, 72, -1)
	check(n, "Memory 50 % of 20 GiB, 1 of 3 GPUs; Power 40 W of 72 W, 1 of 3 GPUs")
	n.addReading(n.Statuses[1].ID, -1, 5, 20, 40, -1, -1)
	check(n, "Memory 38 % of 40 GiB, 2 of 3 GPUs; Power 80 W 2 of 3 GPUs")
	n.addReading(n.Statuses[2].ID, -1, 15, 20, -1, 72, -1)
	check(n, "Memory 50 % of 60 GiB; Power 80 W 2 of 3 GPUs")
	n.Statuses[2].Gone = true
	delete(n.Readings.Devices, n.Statuses[2].ID)
	check(n, "Memory 38 % of 40 GiB; Power 80 W")
}
