package status

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// cardHTML returns the HTML element of a device.
func cardHTML(t *testing.T, page, anchor string) string {
	t.Helper()
	_, html, found := strings.Cut(page, `id="`+anchor+`"`)
	if !found {
		t.Fatalf("no element has the id %s", anchor)
	}
	html, _, _ = strings.Cut(html, `<li class="gpu `)
	return html
}

// TestUnhealthyIsNotUnallocated checks that an unhealthy device is never called unallocated: a GPU, a MIG device, replicas.
func TestUnhealthyIsNotUnallocated(t *testing.T) {
	for name, anchors := range map[string][]string{"failed": {"gpu-6", "gpu-7"}, "mig_failed": {"gpu-3"}, "replicas": {"gpu-2"}, "replaced": {"gpu-1.2"}} {
		page := string(fixtures[name]().page(t))
		for _, anchor := range anchors {
			html := cardHTML(t, page, anchor)
			for _, word := range []string{"unallocated", "free", `class="replica"`} {
				if strings.Contains(html, word) {
					t.Errorf("%s: %s contains %q", name, anchor, word)
				}
			}
			if anchor != "gpu-1.2" && !strings.Contains(html, "cannot be allocated") {
				t.Errorf("%s: %s lacks the text that it cannot be allocated", name, anchor)
			}
		}
	}
	for _, h := range []device.Health{device.Unhealthy, device.Recovering} {
		n := newH100Fixture()
		n.statuses[7].Healthy, n.statuses[7].Health = false, h
		page := string(n.page(t))
		if strings.Contains(cardHTML(t, page, "gpu-7"), "unallocated") || !strings.Contains(cardHTML(t, page, "gpu-6"), "unallocated") {
			t.Errorf("%s: got %s", h, cardHTML(t, page, "gpu-7"))
		}
	}
}

// TestReplicasAreNotDevices checks that 128 replicas are neither counted as GPUs nor called GPUs.
func TestReplicasAreNotDevices(t *testing.T) {
	n := newReplicasFixture()
	v, page := n.pageView(), string(n.page(t))
	stats := map[string]string{}
	for _, s := range v.Stats {
		stats[s.Name] = s.Value + " " + s.Note
	}
	for name, want := range map[string]string{"Healthy": "4 of 5 GPUs", "Allocated": "5 of 5 GPUs", "Replicas allocated": "96 of 128"} {
		if stats[name] != want {
			t.Errorf("%s: got %s, want %s", name, stats[name], want)
		}
	}
	if want := `>128 replicas <span class="where">of 5 GPUs</span><`; !strings.Contains(page, want) {
		t.Errorf("the page lacks %s", want)
	}
	if strings.Contains(page, "128 GPUs") || strings.Contains(page, "128 devices") {
		t.Error("replicas are called devices")
	}
	n.allocations.Complete = false
	if s := n.pageView().Stats[2]; s.Name != "Replicas allocated" || s.Value != "–" {
		t.Errorf("while allocations are unknown: got %+v", s)
	}
}

// TestNouns checks the nouns with numbers of devices.
func TestNouns(t *testing.T) {
	for name, want := range map[string]string{
		"h100": "of 8 GPUs; 8 GPUs", "mig_full": "of 56 MIG devices; 56 MIG devices", "shared": "of 2 GPUs; 10 replicas of 1 GPU; 4 replicas of 1 GPU",
		"mig": "of 11 devices; 1 GPU; 1 MIG device; 7 MIG devices; 1 MIG device; 1 MIG device",
	} {
		got := fixtures[name]().pageView().Stats[0].Note
		cells := regexp.MustCompile(`data-name="Listed" class="number">(.*?)</td>`).FindAllStringSubmatch(string(fixtures[name]().page(t)), -1)
		for _, cell := range cells {
			got += "; " + strings.NewReplacer(`<span class="where">`, "", "</span>", "").Replace(cell[1])
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// TestFaultIsShownOnce checks that a GPU's fault is explained at the GPU and not at each MIG device.
func TestFaultIsShownOnce(t *testing.T) {
	page := string(newFailedMIGFixture().page(t))
	for anchor, want := range map[string]int{"gpu-3": 1, "gpu-5": 1, "gpu-0": 0} {
		if n := strings.Count(cardHTML(t, page, anchor), `class="health-reason`); n != want {
			t.Errorf("%s: got %d explained faults, want %d", anchor, n, want)
		}
	}
	gpu := cardHTML(t, page, "gpu-3")
	if n := strings.Count(gpu, "Xid 79: GPU has fallen off the bus"); n != 1 {
		t.Errorf("got the fault %d times, want once", n)
	}
	if n := strings.Count(gpu, `<span class="chip unhealthy">`); n != 8 {
		t.Errorf("got %d unhealthy devices, want the GPU and 7 MIG devices", n)
	}
	var alerts []string
	for _, a := range newFailedMIGFixture().pageView().Alerts {
		alerts = append(alerts, a.Name)
	}
	if got := strings.Join(alerts, "; "); got != "GPU 3; GPU 5, MIG device 4" {
		t.Errorf("alerts: got %s", got)
	}
	if !strings.Contains(page, `>GPU 3</a>, with 7 MIG devices, is unhealthy: <a href="`+xidCatalogue+`"`) {
		t.Error("the alert lacks the MIG devices or the Xid")
	}
}

// TestUrgency checks the order: unhealthy before recovering before suspect, then by index; MIG devices likewise.
func TestUrgency(t *testing.T) {
	for name, want := range map[string]string{
		"h100": "0 1 2 3 4 5 6 7", "failed": "2 7 6 5 0 1 3 4", "mig": "1:5:0:1:2:3:4:6 0 2:0:1:2 3", "replaced": "1 0 1 2 3 4 5 6 7",
	} {
		if got := shown(fixtures[name]().pageView()); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// TestLastFault checks which incident a device shows, with which containers.
func TestLastFault(t *testing.T) {
	owner := func(pod string) []incident.AffectedContainer {
		return []incident.AffectedContainer{{Owner: device.Owner{Namespace: "lab", Pod: pod, Container: "main"}}}
	}
	newIncident := func(id uint64, d device.ID, reason string, isOpen bool, pod string) incident.Incident {
		i := incident.Incident{ID: id, Device: d, Reason: reason, MarkedUnhealthy: isOpen, Last: beforeNow(time.Minute)}
		if pod != "" {
			i.Affected = owner(pod)
		}
		return i
	}
	for _, c := range []struct {
		name, want string
		incidents  func(gpu, mig device.ID) []incident.Incident
	}{
		{"no incident", "", func(_, _ device.ID) []incident.Incident { return nil }},
		{"the incident of the fault, not a later one", "xid_79: a", func(gpu, _ device.ID) []incident.Incident {
			return []incident.Incident{newIncident(3, gpu, "xid_45", false, "b"), newIncident(2, gpu, "xid_79", true, "a"), newIncident(1, gpu, "xid_79", false, "c")}
		}},
		{"the last one, without an incident of the fault", "xid_31: b", func(gpu, _ device.ID) []incident.Incident {
			return []incident.Incident{newIncident(2, gpu, "xid_31", false, "b"), newIncident(1, gpu, "xid_13", false, "a")}
		}},
		{"containers of MIG devices, each once", "xid_79: a b", func(gpu, mig device.ID) []incident.Incident {
			return []incident.Incident{newIncident(3, gpu, "xid_79", true, "a"), newIncident(2, mig, "xid_79", true, "b"), newIncident(1, mig, "xid_79", true, "a")}
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
			n.incidents.Incidents = append(n.incidents.Incidents, i)
		}
		got := ""
		if f := n.pageView().GPUs[0].LastFault; f != nil {
			got = f.Reason + ":"
			for _, a := range f.Affected {
				got += " " + a.Pod
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		checkHTML(t, n.page(t))
	}
	html := cardHTML(t, string(newFailedFixture().page(t)), "gpu-2")
	for _, want := range []string{"Last incident</a>", ">llama-pretrain-0<", "Failed, Error, exit 139", `href="` + xidCatalogue + `"`, "<code>xid_79</code>", "reboot the node"} {
		if !strings.Contains(html, want) {
			t.Errorf("the element of the failed GPU lacks %s", want)
		}
	}
	healthy := newFailedFixture().pageView().GPUs
	if slices.ContainsFunc(healthy, func(g *deviceCard) bool { return g.Health == "healthy" && g.LastFault != nil }) {
		t.Error("a healthy GPU shows a last fault")
	}
}

// TestCompactTables checks that each of 56 MIG devices and 96 allocated replicas has a row, and limits its size.
func TestCompactTables(t *testing.T) {
	for _, c := range []struct {
		name, row      string
		rows, maxBytes int // bytes per row
	}{
		{"mig_full", `<tr role="row" class="mig-device `, 56, 1200},
		{"replicas", `<td role="cell">replica`, 96, 400},
	} {
		page := string(fixtures[c.name]().page(t))
		rows := strings.Split(page, c.row)[1:]
		size := 0
		for _, row := range rows {
			row, _, _ = strings.Cut(row, "</tr>")
			size += len(row)
		}
		if len(rows) != c.rows || size/len(rows) > c.maxBytes {
			t.Errorf("%s: got %d rows of %d bytes, want %d rows of at most %d", c.name, len(rows), size/len(rows), c.rows, c.maxBytes)
		}
	}
}

// TestPastBars checks the bars of a device without a reading, and without a power limit.
func TestPastBars(t *testing.T) {
	n := newEmptyFixture()
	id := n.addGPU("NVIDIA L4", 24, "8.9").ID
	text := func() (all []string) {
		for _, b := range n.pageView().GPUs[0].Bars {
			all = append(all, b.Name+" "+b.Text+" "+b.Percent+" "+b.Past.Path)
		}
		return all
	}
	n.addReading(id, 0.25, 12, 24, 30, -1, -1)
	n.addHistory()
	if got := strings.Join(text(), "; "); !strings.HasPrefix(got, "Utilization 25 % 25 M0 ") || !strings.HasSuffix(got, "; Power 30 W  ") {
		t.Errorf("got %s", got)
	}
	delete(n.readings.Devices, id)
	if got := strings.Join(text(), "; "); !strings.HasPrefix(got, "Utilization –  M0 ") || strings.Contains(got, "Power") {
		t.Errorf("without a reading: got %s", got)
	}
	n.readings.History = nil
	if got := text(); got != nil {
		t.Errorf("without a history: got %s", got)
	}
}
