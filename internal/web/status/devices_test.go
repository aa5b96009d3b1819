package status_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// TestUnhealthyIsNotUnallocated checks that an unhealthy device is never called unallocated: a GPU, a MIG device,
// replicas.
func TestUnhealthyIsNotUnallocated(t *testing.T) {
	for name, anchors := range map[string][]string{
		"failed": {"gpu-6", "gpu-7"}, "mig_failed": {"gpu-3"}, "replicas": {"gpu-2"}, "replaced": {"gpu-1.2"},
	} {
		page := fixtures[name]().page(t)
		for _, anchor := range anchors {
			card := page.byID(t, anchor)
			if text := card.text(); strings.Contains(text, "unallocated") || strings.Contains(text, "free") {
				t.Errorf("%s, %s: got %s", name, anchor, text)
			}
			for _, replica := range card.all("replica") {
				if replica.attribute("class") == "replica" {
					t.Errorf("%s, %s: replica %s is drawn as unallocated", name, anchor, replica.text())
				}
			}
			if anchor != "gpu-1.2" && !strings.Contains(card.text(), "cannot be allocated") {
				t.Errorf("%s: %s lacks the text that it cannot be allocated", name, anchor)
			}
		}
	}
	for _, h := range []device.Health{device.Unhealthy, device.Recovering} {
		n := newH100Fixture()
		n.Statuses[7].Healthy, n.Statuses[7].Health = false, h
		page := n.page(t)
		failed, healthy := page.byID(t, "gpu-7").text(), page.byID(t, "gpu-6").text()
		if strings.Contains(failed, "unallocated") || !strings.Contains(healthy, "unallocated") {
			t.Errorf("%s: got %s", h, failed)
		}
	}
}

// TestUnknownIsNotUnallocated checks that no device is shown or counted as unallocated while the allocations are
// incomplete.
func TestUnknownIsNotUnallocated(t *testing.T) {
	n := newUnsettledFixture()
	page := n.page(t)
	for _, card := range page.all("gpu") {
		for _, text := range append(texts(card.all("no-owner")), texts(card.all("replica-text"))...) {
			if text == "unallocated" || text == "1 of 4 replicas allocated" {
				t.Errorf("got %s: %s", card.attribute("id"), text)
			}
		}
	}
	for _, class := range []string{"map-part", "replica"} {
		for _, part := range page.all(class) {
			if !strings.Contains(part.attribute("class"), "allocated") && !strings.Contains(part.attribute("class"), "unknown") {
				t.Errorf("%s %s is drawn as unallocated", class, part.text())
			}
		}
	}
	for _, count := range page.cells("resources", "Allocated") {
		if count != "–" {
			t.Errorf("got %s allocated, want unknown", count)
		}
	}
	n.Allocations.Complete = true
	if got := n.page(t).cells("resources", "Allocated"); got[0] != "1" {
		t.Errorf("with complete allocations: got %v", got)
	}
}

// TestReplicasAreNotDevices checks that 128 replicas are neither counted as GPUs nor called GPUs.
func TestReplicasAreNotDevices(t *testing.T) {
	n := newReplicasFixture()
	page := n.page(t)
	if text := page.text(); strings.Contains(text, "128 GPUs") || strings.Contains(text, "128 devices") {
		t.Error("replicas are called devices")
	}
	n.Allocations.Complete = false
	if got := n.page(t).pairs("stats")["Replicas allocated"]; got != "– not known yet" {
		t.Errorf("while allocations are unknown: got %s", got)
	}
}

// TestFaultIsShownOnce checks that a GPU's fault is explained at the GPU and not at each MIG device.
func TestFaultIsShownOnce(t *testing.T) {
	page := newFailedMIGFixture().page(t)
	for anchor, want := range map[string]int{"gpu-3": 1, "gpu-5": 1, "gpu-0": 0} {
		if got := page.byID(t, anchor).all("health-reason"); len(got) != want {
			t.Errorf("%s: got %d explained faults, want %d", anchor, len(got), want)
		}
	}
	gpu := page.byID(t, "gpu-3")
	if n := strings.Count(gpu.text(), "Xid 79: GPU has fallen off the bus"); n != 1 {
		t.Errorf("got the fault %d times, want once", n)
	}
	unhealthy := 0
	for _, chip := range gpu.all("chip") {
		if chip.text() == "unhealthy" {
			unhealthy++
		}
	}
	if unhealthy != 8 {
		t.Errorf("got %d unhealthy devices, want the GPU and 7 MIG devices", unhealthy)
	}
	want := "GPU 3, with 7 MIG devices, is unhealthy: Xid 79: GPU has fallen off the bus → reboot the node " +
		"GPU 5, MIG device 4 is unhealthy: Xid 95: uncontained memory error → reset the GPU"
	if got := page.first("alerts").text(); got != want {
		t.Errorf("alerts: got %s", got)
	}
}

// TestLastFault checks which incident a device shows, with which containers.
func TestLastFault(t *testing.T) {
	newIncident := func(id uint64, d device.ID, reason string, isOpen bool, pod string) incident.Incident {
		return incident.Incident{
			ID: id, Device: d, Reason: reason, MarkedUnhealthy: isOpen, Last: beforeNow(time.Minute),
			Affected: []incident.AffectedContainer{{Owner: device.Owner{Namespace: "lab", Pod: pod, Container: "main"}}},
		}
	}
	for _, c := range []struct {
		name, want string
		incidents  func(gpu, mig device.ID) []incident.Incident
	}{
		{"no incident", "", func(_, _ device.ID) []incident.Incident { return nil }},
		{"the incident of the fault, not a later one", "xid_79: a", func(gpu, _ device.ID) []incident.Incident {
			return []incident.Incident{
				newIncident(3, gpu, "xid_45", false, "b"), newIncident(2, gpu, "xid_79", true, "a"),
				newIncident(1, gpu, "xid_79", false, "c"),
			}
		}},
		{"the last one, without an incident of the fault", "xid_31: b", func(gpu, _ device.ID) []incident.Incident {
			return []incident.Incident{newIncident(2, gpu, "xid_31", false, "b"), newIncident(1, gpu, "xid_13", false, "a")}
		}},
		{"containers of MIG devices, each once", "xid_79: a b", func(gpu, mig device.ID) []incident.Incident {
			return []incident.Incident{
				newIncident(3, gpu, "xid_79", true, "a"), newIncident(2, mig, "xid_79", true, "b"),
				newIncident(1, mig, "xid_79", true, "a"),
			}
		}},
		{"not of another fault of a MIG device", "xid_79: a", func(gpu, mig device.ID) []incident.Incident {
			return []incident.Incident{newIncident(2, mig, "xid_95", true, "b"), newIncident(1, gpu, "xid_79", true, "a")}
		}},
		{"not of another GPU", "", func(_, _ device.ID) []incident.Incident {
			return []incident.Incident{newIncident(1, "GPU-other", "xid_79", true, "a")}
		}},
	} {
		n := newEmptyFixture()
		s := n.addGPU("NVIDIA L4", 24, "8.9")
		s.Healthy, s.Health, s.Reason = false, device.Unhealthy, "xid_79"
		for _, i := range c.incidents(s.ID, "MIG-1") {
			if i.GPU = s.GPU; i.Device == "GPU-other" {
				i.GPU = "GPU-other"
			}
			n.Incidents.Incidents = append(n.Incidents.Incidents, i)
		}
		got := ""
		last := n.page(t).byID(t, "gpu-0").first("last-fault")
		for i, link := range last.find(func(e element) bool { return e.Data == "a" }) {
			if i == 0 {
				_, reason, _ := strings.Cut(link.attribute("href"), "reason=")
				got = reason + ":"
			} else {
				got += " " + link.text()
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPartitionMap checks that MIG devices are drawn at the position of their memory.
func TestPartitionMap(t *testing.T) {
	type migDevice struct {
		profile string
		memory  float64
		at      device.Placement
	}
	for _, c := range []struct {
		name   string
		memory float64
		slices []migDevice
		want   string
	}{
		{"H100", 80, []migDevice{
			{"1g.20gb", 19.5, device.Placement{Start: 0, Size: 2}},
			{"1g.10gb+me", 9.75, device.Placement{Start: 2, Size: 1}},
			{"2g.20gb", 19.5, device.Placement{Start: 4, Size: 2}},
		}, "of-8: at-0 span-2, at-2 span-1, at-4 span-2"},
		{"A100, of 40 GB", 40, []migDevice{
			{"1g.10gb", 9.6, device.Placement{Start: 6, Size: 2}},
		}, "of-8: at-6 span-2"},
		{"A30", 24, []migDevice{
			{"1g.6gb", 5.8, device.Placement{Start: 3, Size: 1}}, {"2g.12gb", 11.7, device.Placement{Start: 0, Size: 2}},
		}, "of-4: at-3 span-1, at-0 span-2"},
		{"unknown memory", 0, []migDevice{{"3g.40gb", 39.5, device.Placement{Start: 4, Size: 4}}}, "of-8: at-4 span-4"},
		{"unknown place", 80, []migDevice{{"3g.40gb", 39.5, device.Placement{Start: -1}}}, "of-8: span-1"},
	} {
		n := newEmptyFixture()
		n.addGPU("NVIDIA "+c.name, c.memory, "9.0").MIGEnabled = true
		for i, s := range c.slices {
			n.addMIGDevice(s.profile, i, 0, s.memory, s.at)
		}
		drawn := n.page(t).first("map")
		var places []string
		for _, instance := range drawn.all("instance") {
			places = append(places, strings.TrimPrefix(instance.attribute("class"), "instance "))
		}
		got := strings.TrimPrefix(drawn.attribute("class"), "map ") + ": " + strings.Join(places, ", ")
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestManyOwners checks that the page states the number of owners that it leaves out.
func TestManyOwners(t *testing.T) {
	n := newEmptyFixture()
	id := n.addGPU("NVIDIA L4", 24, "8.9").ID
	for i := range 20 {
		n.allocate(gpuResource, id.Advertised(), time.Hour, fmt.Sprintf("lab/pod-%d/main", i))
	}
	owners := n.page(t).byID(t, "gpu-0").first("owners")
	if len(owners.all("pod")) != 16 || !strings.HasSuffix(owners.text(), "and 4 more") {
		t.Errorf("got %s", owners.text())
	}
}
