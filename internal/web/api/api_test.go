package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiFixture is a node with values of a test.
type apiFixture api.Node

// request sends a request and checks the headers common to all responses.
func (s *apiFixture) request(t *testing.T, method, url string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	source := func() (api.Node, []<-chan struct{}) { return api.Node(*s), nil }
	api.Handler(source).ServeHTTP(w, httptest.NewRequest(method, url, http.NoBody))
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Content-Length": fmt.Sprint(w.Body.Len()),
	} {
		expect.Equal(t, w.Header().Get(name), want, method, url, name)
	}
	if !json.Valid(w.Body.Bytes()) || !utf8.Valid(w.Body.Bytes()) || strings.Contains(w.Body.String(), "null") {
		t.Errorf("%s %s: got %q", method, url, w.Body)
	}
	return w
}

// getJSON decodes a successful response.
func getJSON[T any](t *testing.T, s *apiFixture, url string) T {
	t.Helper()
	w := s.request(t, http.MethodGet, url)
	var v T
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: got status %d, %s: %v", url, w.Code, w.Body, err)
	}
	return v
}

func migDevice(gpu device.GPU, index, n int) device.Device {
	return device.Device{
		ID: device.ID(fmt.Sprintf("MIG-%d-%d", index, n)), GPU: gpu, Index: index, MIGDeviceIndex: n, GI: 7 + n, CI: 0,
		Profile: "1g.10gb", Minor: index, NUMANode: -1,
	}
}

func wholeGPU(index int) device.Device {
	id := fmt.Sprintf("GPU-%d", index)
	return device.Device{
		ID: device.ID(id), GPU: device.GPU(id), Index: index, MIGDeviceIndex: -1, GI: -1, CI: -1, Minor: index,
		Model: "NVIDIA H100", PCI: "0000:1a:00.0", NUMANode: 0,
		InfoLabels: []device.Label{{Name: "serial", Value: "1"}, {Name: "chassis_slot", Value: ""}},
	}
}

var (
	train = allocation.Owner{Namespace: "research", Pod: "train", Container: "main"}
	embed = allocation.Owner{Namespace: "serving", Pod: "embed", Container: "main"}
	past  = allocation.Owner{Namespace: "research", Pod: "past", Container: "main"}
)

// newAPIFixture returns a node with an allocated GPU 0, GPU 1 with two MIG
// devices, one of them shared, an unhealthy GPU 2 with an allocation without an
// owner, and incidents of the removed GPU 7.
func newAPIFixture(now time.Time) *apiFixture {
	partitioned := wholeGPU(1)
	partitioned.MIGEnabled = true
	healthy := func(d device.Device) device.Status { return device.Status{Device: d, Healthy: true, Since: now} }
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	newIncident := func(id uint64, d device.Device, reason string, last time.Time, to ...allocation.Owner) incident.Incident {
		i := incident.Incident{
			ID: id, First: last, Last: last, Count: 1, Device: d.ID, GPU: d.GPU, Index: d.Index, Profile: d.Profile,
			Reason: reason,
		}
		for _, o := range to {
			i.Affected = append(i.Affected, incident.AffectedContainer{
				Owner: o, Since: last, Until: last,
				Termination: &incident.PodTermination{At: last, Phase: "Failed"},
			})
		}
		return i
	}
	recovered := ago(time.Minute)
	s := &apiFixture{
		Name:   "node-a",
		Driver: device.Driver{State: device.DriverUp},
		Statuses: []device.Status{
			healthy(wholeGPU(0)), healthy(partitioned), healthy(migDevice("GPU-1", 1, 0)), healthy(migDevice("GPU-1", 1, 1)),
			{
				Device: wholeGPU(2), Health: device.Unhealthy, Reason: "xid_79", Action: "reset_gpu",
				Since: ago(time.Minute), Flaps: 2,
				Xids: []device.Xid{{Code: 79, Count: 1, Last: ago(time.Minute)}},
			},
		},
		Allocations: allocation.Snapshot{
			At: now, Complete: true,
			All: []allocation.Allocation{
				{Resource: "nvidia.com/gpu", DeviceID: "GPU-0", Owner: train},
				{Resource: "nvidia.com/gpu", DeviceID: "GPU-2"},
				{Resource: "nvidia.com/mig-1g.10gb", DeviceID: "MIG-1-0::0", Owner: train},
				{Resource: "nvidia.com/mig-1g.10gb", DeviceID: "MIG-1-0::1", Owner: embed},
				{Resource: "nvidia.com/mig-1g.10gb", DeviceID: "MIG-1-0::2", Owner: embed},
			},
			Recent: []allocation.Record{
				{Device: "GPU-0", Owner: train, FirstSeen: ago(time.Hour), LastSeen: now},
				{Device: "GPU-0", Owner: past, FirstSeen: ago(3 * time.Hour), LastSeen: ago(2 * time.Hour)},
				{Device: "GPU-0", Owner: embed, FirstSeen: ago(2 * time.Hour), LastSeen: ago(time.Hour)},
				{Device: "GPU-7", Owner: past, FirstSeen: ago(time.Hour), LastSeen: ago(time.Minute)},
			},
		},
		Incidents: incident.Snapshot{Persisted: true, Incidents: []incident.Incident{
			newIncident(5, wholeGPU(2), "xid_79", ago(time.Minute)),
			newIncident(4, migDevice("GPU-1", 1, 0), "xid_94", ago(time.Hour), train, embed),
			newIncident(3, wholeGPU(0), "xid_31", ago(2*time.Hour), past),
			newIncident(2, wholeGPU(7), "lost", ago(3*time.Hour), past),
			newIncident(1, wholeGPU(0), "xid_31", ago(4*time.Hour), past),
		}},
	}
	s.Incidents.Incidents[1].RecoveredAt = &recovered
	return s
}

func TestDevices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		s := newAPIFixture(now)
		d := getJSON[api.DevicesResponse](t, s, api.DevicesPath)
		if d.Node != "node-a" || d.Driver.State != "up" || !d.Kubelet.Up || !d.At.Equal(now) || len(d.Devices) != 5 {
			t.Fatalf("got %+v", d)
		}
		var states []string
		for _, dev := range d.Devices {
			states = append(states, dev.AllocationState)
		}
		expect.EqualSlices(t, states, []string{"allocated", "partitioned", "shared", "unallocated", "unnamed"},
			"allocation states")
		for query, want := range map[string]int{
			"?device=0": 1, "?device=GPU-1": 3, "?device=1": 3, "?device=MIG-1-1": 1, "?device=8": 0,
		} {
			if some := getJSON[api.DevicesResponse](t, s, api.DevicesPath+query).Devices; len(some) != want {
				t.Errorf("%s: got %d devices, want %d", query, len(some), want)
			}
		}
		gpu, mig, bad := d.Devices[0], d.Devices[2], d.Devices[4]
		if gpu.Health != "healthy" || !gpu.Healthy || gpu.MIGDeviceIndex != nil || gpu.NUMANode == nil ||
			gpu.InfoLabels["serial"] != "1" || len(gpu.InfoLabels) != 1 || gpu.LastIncident.ID != 3 {
			t.Errorf("GPU 0: got %+v", gpu)
		}
		if got := podNames(gpu.Owners); got != "train" || !gpu.Owners[0].FirstSeen.Equal(now.Add(-time.Hour)) {
			t.Errorf("GPU 0: got owners %s, since %s", got, gpu.Owners[0].FirstSeen)
		}
		expect.Equal(t, podNames(gpu.PastOwners), "embed past", "GPU 0")
		if mig.Profile != "1g.10gb" || *mig.MIGDeviceIndex != 0 || *mig.GI != 7 || mig.NUMANode != nil ||
			podNames(mig.Owners) != "train embed" || len(mig.Owners[1].Resources) != 2 {
			t.Errorf("MIG device: got %+v", mig)
		}
		if bad.Healthy || bad.Health != "unhealthy" || bad.Reason != "xid_79" || bad.Action != "reset_gpu" ||
			bad.Flaps != 2 || bad.Xids[0].Xid != 79 || len(bad.Owners) != 0 {
			t.Errorf("GPU 2: got %+v", bad)
		}
	})
}

func podNames(owners []api.OwnerJSON) string {
	var list []string
	for _, h := range owners {
		list = append(list, h.Pod)
	}
	return strings.Join(list, " ")
}

// TestUnknownState checks that unknown state is no error and that no list is null.
func TestUnknownState(t *testing.T) {
	s := &apiFixture{
		Name:        "node-a",
		Driver:      device.Driver{Err: errors.New("no\nlibrary")},
		Allocations: allocation.Snapshot{Err: errors.New("connection refused")},
	}
	d := getJSON[api.DevicesResponse](t, s, api.DevicesPath)
	kubelet := api.KubeletJSON{Error: "connection refused"}
	if d.Driver != (api.DriverJSON{"starting", "no; library"}) || d.Kubelet != kubelet || d.Devices == nil {
		t.Errorf("got %+v", d)
	}
	if h := getJSON[api.AllocationsResponse](t, s, api.AllocationsPath); h.Complete || h.Allocations == nil {
		t.Errorf("got %+v", h)
	}
	s.Incidents.Err = errors.New("disk full")
	i := getJSON[api.IncidentsResponse](t, s, api.IncidentsPath)
	if i.Persisted || i.Error != "disk full" || i.Incidents == nil {
		t.Errorf("got %+v", i)
	}
	n := getJSON[api.NodeResponse](t, s, api.NodePath)
	if n.Driver != d.Driver || n.Devices == nil || n.Resources == nil || n.Incidents == nil {
		t.Errorf("got %+v", n)
	}
	s.Driver = device.Driver{State: device.DriverUp} // a driver without known devices is about to list them
	expect.Equal(t, getJSON[api.NodeResponse](t, s, api.NodePath).Driver.State, "starting",
		"before the first checks of the devices")
	if w := new(apiFixture).request(t, http.MethodGet, api.IncidentsPath); w.Code != http.StatusOK {
		t.Errorf("incidents of a node without incidents: got status %d, %s", w.Code, w.Body)
	}
}

func TestAllocations(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newAPIFixture(time.Now())
		for _, c := range []struct{ query, want string }{
			{"", "GPU-0/train GPU-0-embed GPU-0-past MIG-1-0/train MIG-1-0/embed GPU-7-past"},
			{"?device=GPU-0", "GPU-0/train GPU-0-embed GPU-0-past"},
			{"?device=GPU-1", "MIG-1-0/train MIG-1-0/embed"}, // its MIG devices
			{"?device=MIG-1-0&pod=embed", "MIG-1-0/embed"},
			{"?device=1", "MIG-1-0/train MIG-1-0/embed"},
			{"?device=GPU-7", "GPU-7-past"},
			{"?device=7", ""}, // a removed GPU has no index
			{"?device=-1", ""},
			{"?namespace=serving", "GPU-0-embed MIG-1-0/embed"},
			{"?pod=past", "GPU-0-past GPU-7-past"},
			{"?pod=past&namespace=serving", ""},
			{"?device=GPU-4", ""},
		} {
			var got []string
			for _, h := range getJSON[api.AllocationsResponse](t, s, api.AllocationsPath+c.query).Allocations {
				got = append(got, string(h.Device)+map[bool]string{true: "/", false: "-"}[h.Current]+h.Pod)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: got %s, want %s", c.query, got, c.want)
			}
		}
	})
}

func TestIncidents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		s := newAPIFixture(now)
		s.Incidents.Incidents[4].Index = 1 // GPU 0 had a different index then
		for _, c := range []struct {
			query string
			want  string
			total int
		}{
			{"", "[5 4 3 2 1]", 5},
			{"?limit=2", "[5 4]", 5},
			{"?device=GPU-0", "[3 1]", 2},
			{"?device=0", "[3 1]", 2},
			{"?device=GPU-1", "[4]", 1}, // its MIG devices
			{"?device=1", "[4]", 1},
			{"?device=MIG-1-0", "[4]", 1},
			{"?device=MIG-1-1", "[]", 0},
			{"?device=7", "[2]", 1}, // of a removed GPU
			{"?device=-1", "[]", 0},
			{"?namespace=research", "[4 3 2 1]", 4},
			{"?namespace=serving&pod=embed", "[4]", 1},
			{"?namespace=serving&pod=train", "[]", 0}, // both match one container only
			{"?pod=past&reason=xid_31", "[3 1]", 2},
			{"?since=90m", "[5 4]", 2},
			{"?since=1h", "[5 4]", 2},
			{"?since=" + now.Add(-3*time.Hour).UTC().Format(time.RFC3339), "[5 4 3 2]", 4},
			{"?since=0s", "[]", 0},
		} {
			got := getJSON[api.IncidentsResponse](t, s, api.IncidentsPath+c.query)
			ids := []uint64{}
			for _, i := range got.Incidents {
				ids = append(ids, i.ID)
			}
			if fmt.Sprint(ids) != c.want || got.Total != c.total {
				t.Errorf("%s: got %v of %d, want %s of %d", c.query, ids, got.Total, c.want, c.total)
			}
		}
		expect.Contains(t, s.request(t, http.MethodGet, api.IncidentsPath).Body.String(), `"affected":[]`)
	})
}

func TestInvalidRequests(t *testing.T) {
	s := newAPIFixture(time.Now())
	for _, c := range []struct {
		method, url string
		status      int
		message     string
	}{
		{"GET", api.DevicesPath + "?pod=a", 400, `unknown parameter "pod": expected device`},
		{"GET", api.AllocationsPath + "?since=1h", 400, `unknown parameter "since": expected device, namespace, pod`},
		{"GET", api.IncidentsPath + "?pods=x", 400, `unknown parameter "pods": expected device, namespace, pod, reason, `},
		{"GET", api.NodePath + "?device=0", 400, `unknown parameter "device": expected since, watch`},
		{"GET", api.NodePath + "?watch=false", 400, `watch "false": expected true or no value`},
		{"GET", api.DevicesPath + "?watch&watch", 400, "watch is given 2 times"},
		{"GET", api.IncidentsPath + "?watch&limit=0", 400, `limit "0": expected a number from 1 to 1000`},
		{"GET", api.IncidentsPath + "?pod=", 400, `pod "": expected a value`},
		{"GET", api.IncidentsPath + "?pod=a&pod=b", 400, "pod is given 2 times"},
		{"GET", api.IncidentsPath + "?limit=0", 400, `limit "0": expected a number from 1 to 1000`},
		{"GET", api.IncidentsPath + "?limit=1001", 400, `limit "1001": expected a number from 1 to 1000`},
		{"GET", api.IncidentsPath + "?limit=many", 400, `limit "many": expected a number from 1 to 1000`},
		{"GET", api.IncidentsPath + "?since=yesterday", 400, `since "yesterday": expected a time (2006-01-02T15:04:05Z) or`},
		{"GET", api.IncidentsPath + "?since=-1h", 400, `since "-1h": expected a time`},
		{"GET", api.IncidentsPath + "?pod=%zz", 400, "parse parameters: "},
		{"GET", api.IncidentsPath + "?a;b", 400, "parse parameters: "},
		{"GET", api.IncidentsPath + "?pod=" + strings.Repeat("x", 5000), 400, "parameters of 5004 bytes: expected at"},
		{"POST", api.IncidentsPath, 405, "POST: expected GET or HEAD"},
		{"DELETE", api.DevicesPath, 405, "DELETE: expected GET or HEAD"},
		{"GET", api.Root, 404, "unknown path /api/v1/: expected /api/v1/node, /api/v1/devices"},
		{"GET", api.DevicesPath + "/GPU-0", 404, "unknown path /api/v1/devices/GPU-0"},
	} {
		w := s.request(t, c.method, c.url)
		var response api.ErrorResponse
		err := json.Unmarshal(w.Body.Bytes(), &response)
		if err != nil || w.Code != c.status || !strings.HasPrefix(response.Error, c.message) {
			t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.url, w.Code, w.Body, c.status, c.message)
		}
		if allow := w.Header().Get("Allow"); (c.status == 405) != (allow == "GET, HEAD") {
			t.Errorf("%s %s: Allow: got %s", c.method, c.url, allow)
		}
	}
}

// TestHostileNames checks that hostile names are encoded without loss.
func TestHostileNames(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hostile := "a\"b\n\x1b[31m<script>\u2028\xff"
		s := newAPIFixture(time.Now())
		s.Statuses[0].Model = hostile
		s.Statuses[0].InfoLabels = []device.Label{{Name: hostile, Value: hostile}}
		s.Allocations.All[0].Owner.Pod = hostile
		s.Incidents.Incidents[0].Reason = hostile
		read := strings.ReplaceAll(hostile, "\xff", "\uFFFD")
		d := getJSON[api.DevicesResponse](t, s, api.DevicesPath)
		if d.Devices[0].Model != read || d.Devices[0].InfoLabels[read] != read || d.Devices[0].Owners[0].Pod != read {
			t.Errorf("got %+v", d.Devices[0])
		}
		if i := getJSON[api.IncidentsResponse](t, s, api.IncidentsPath); i.Incidents[0].Reason != read {
			t.Errorf("got %+v", i.Incidents[0])
		}
		s.request(t, http.MethodGet, "/api/v1/%ff%0a")
		s.request(t, http.MethodGet, api.IncidentsPath+"?%ff=%0a")
	})
}

// TestEncodingFails checks that a failed encoding is an error instead of a partial response.
func TestEncodingFails(t *testing.T) {
	s := newAPIFixture(time.Now())
	s.Incidents.Incidents[0].Last = time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC)
	w := s.request(t, http.MethodGet, api.IncidentsPath)
	if w.Code != http.StatusInternalServerError || !strings.HasPrefix(w.Body.String(), `{"error":"encode response: `) {
		t.Errorf("got status %d, %s", w.Code, w.Body)
	}
}

// FuzzParseQuery checks that parsed queries are within limits, and that errors have one line.
func FuzzParseQuery(f *testing.F) {
	params := []string{"device", "namespace", "pod", "reason", "since", "limit"}
	for _, seed := range []string{
		"", "device=0&limit=5", "since=1h", "since=2026-01-02T03:04:05Z", "pod=a&pod=b", "x=1", "limit=-1", "a;b", "pod=%00",
		"%ff=%ff",
	} {
		f.Add(seed)
	}
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := api.ParseQuery(raw, params, now)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("%q: got an error of several lines: %q", raw, err)
			}
			return
		}
		if q.Limit < 1 || q.Limit > api.MaxLimit || len(raw) > 4096 || q.Since.After(now) && !strings.Contains(raw, "T") {
			t.Errorf("%q: got %+v", raw, q)
		}
		if raw == "" && q != (api.Query{Limit: api.DefaultLimit}) {
			t.Errorf("empty query: got %+v", q)
		}
		isEmpty := q == api.Query{Limit: api.DefaultLimit} && !strings.ContainsAny(raw, "=")
		if _, err := api.ParseQuery(raw, nil, now); (err == nil) != isEmpty {
			t.Errorf("%q without parameters: got %v", raw, err)
		}
	})
}

// TestIncidentOfPartitionedGPU checks that an incident belongs to the GPU and to each affected MIG device.
func TestIncidentOfPartitionedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newAPIFixture(time.Now())
		s.Incidents.Incidents[0] = incident.Incident{
			ID: 5, Device: "GPU-1", GPU: "GPU-1", Index: 1, Reason: "xid_79", Last: time.Now(),
			MIGDevices: []incident.AffectedMIGDevice{{Device: "MIG-1-1", Profile: "1g.10gb"}},
		}
		for query, want := range map[string]int{
			"?device=GPU-1": 2, "?device=1": 2, "?device=MIG-1-1": 1, "?device=MIG-1-0": 1, "?device=GPU-2": 0,
		} {
			if got := getJSON[api.IncidentsResponse](t, s, api.IncidentsPath+query); got.Total != want {
				t.Errorf("%s: got %+v, want %d", query, got.Incidents, want)
			}
		}
		var last []uint64
		for _, d := range getJSON[api.DevicesResponse](t, s, api.DevicesPath+"?device=1").Devices {
			last = append(last, d.LastIncident.ID)
		}
		expect.EqualSlices(t, last, []uint64{5, 4, 5}, "last incidents")
	})
}

func TestRetiredAndMissing(t *testing.T) {
	s := newAPIFixture(time.Now())
	s.Statuses[4].Reason, s.Statuses[4].Note, s.ExpectedGPUs = "retired", "fan", 8
	d := getJSON[api.DevicesResponse](t, s, api.DevicesPath)
	if d.Devices[4].Note != "fan" || d.ExpectedGPUs != 8 || d.MissingGPUs != 5 {
		t.Errorf("got %+v", d)
	}
	if s.Statuses = nil; getJSON[api.DevicesResponse](t, s, api.DevicesPath).MissingGPUs != 0 {
		t.Error("GPUs are missing before the first listing")
	}
}

// TestNode checks that the node has all devices, the resources, and incidents that began or ended lately.
func TestNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		s := newAPIFixture(now)
		recovered := now.Add(-15 * time.Minute)
		s.Incidents.Incidents[1].RecoveredAt, s.ExpectedGPUs = &recovered, 8
		s.Resources = []api.ResourceJSON{{Name: "nvidia.com/gpu", Devices: 2, Waiting: true, Error: "timeout"}}
		for query, want := range map[string][]uint64{"": {5, 4}, "?since=2h": {5, 4, 3}, "?since=10s": {}} {
			got := getJSON[api.NodeResponse](t, s, api.NodePath+query)
			ids := []uint64{}
			for _, i := range got.Incidents {
				ids = append(ids, i.ID)
			}
			if !slices.Equal(ids, want) || got.Node != "node-a" || got.Driver.State != "up" || len(got.Devices) != 5 ||
				got.IncidentsTotal != len(want) || got.MissingGPUs != 5 || !slices.Equal(got.Resources, s.Resources) {
				t.Errorf("%s: got incidents %v of %+v, want %v", query, ids, got, want)
			}
		}
	})
}
