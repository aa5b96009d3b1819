package dashboards

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// testScrapes returns two scrapes of a node with a series of each sort.
func testScrapes() nodeScrapes {
	scrape := func(energy, seen int) string {
		var text strings.Builder
		for gpu, pod := range podsOfKinds {
			migUUID, container, namespace := "", "", ""
			if pod != "" {
				container, namespace = "main", "team"
			}
			if gpu == int(mig) {
				migUUID = "MIG-0000a107-5eed-5000-8000-000001000000"
			}
			device := fmt.Sprintf(`gpu="%d",uuid="GPU-0000a10%d-5eed-4000-8000-00000000000%d",mig_uuid=%q`, gpu, gpu, gpu, migUUID)
			owner := fmt.Sprintf(`pod=%q,container=%q,namespace=%q`, pod, container, namespace)
			load := 0.0
			if pod != "" {
				load = 0.4
				fmt.Fprintf(&text, "nvidia_gpu_allocation_last_seen_timestamp_seconds{%s,%s} %d\n", device, owner, seen)
			}
			fmt.Fprintf(&text, "nvidia_gpu_allocated{%s,%s} %d\n", device, owner, min(gpu, 1))
			fmt.Fprintf(&text, "nvidia_gpu_utilization_ratio{%s,%s} %g\n", device, owner, load)
			fmt.Fprintf(&text, "nvidia_gpu_energy_joules_total{%s,%s} %g\n", device, owner, float64(energy)*(1+load))
			fmt.Fprintf(&text, "nvidia_gpu_up{%s,pod=\"\",container=\"\",namespace=\"\"} 1\n", device)
			if gpuKind(gpu).isFault() {
				fmt.Fprintf(&text, "nvidia_gpu_xid_last_timestamp_seconds{%s,pod=\"\",xid=\"79\"} 5\n", device)
			}
		}
		fmt.Fprintf(&text, "podgauge_nvml_up 1\npodgauge_plugin_devices{resource=\"nvidia.com/gpu\",health=\"healthy\"} 5\n")
		return text.String()
	}
	return nodeScrapes{scrape(1000, 10), scrape(3000, 20), 10 * time.Second}
}

// receivedSeries has the values of a received series by time.
type receivedSeries map[int64]float64

// receive returns the series and requests that a fleet sends in windows of some steps.
func receive(t *testing.T, f *fleetModel, window int) (map[string]receivedSeries, []byte) {
	t.Helper()
	all := map[string]receivedSeries{}
	var sum []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		if _, err := body.ReadFrom(r.Body); err != nil {
			t.Error(err)
		}
		sum = append(sum, body.Bytes()...)
		decode(t, unsnappy(t, body.Bytes()), all)
	}))
	defer server.Close()
	var r writeRequest
	for from := 0; from < f.steps; from += window {
		for node := range f.nodes {
			r.reset()
			f.write(&r, node, from, min(from+window, f.steps))
			if err := r.send(t.Context(), server.URL); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all, sum
}

// unsnappy decodes literals of snappy's format.
func unsnappy(t *testing.T, data []byte) (out []byte) {
	t.Helper()
	size, n := binary.Uvarint(data)
	for data = data[n:]; len(data) > 0; {
		if data[0] != 61<<2 {
			t.Fatalf("tag %d", data[0])
		}
		length := int(data[1]) + int(data[2])<<8 + 1
		out, data = append(out, data[3:3+length]...), data[3+length:]
	}
	if len(out) != int(size) {
		t.Fatalf("%d bytes, want %d", len(out), size)
	}
	return out
}

// fields calls a function for each field of a message.
func fields(t *testing.T, message []byte, each func(n protowire.Number, value []byte)) {
	t.Helper()
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			t.Fatal("no tag")
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			t.Fatal("no value")
		}
		value := message[:size]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message)
		}
		each(n, value)
		message = message[size:]
	}
}

// decode adds the series of a request. It requires that the samples of a series are in order.
func decode(t *testing.T, request []byte, all map[string]receivedSeries) {
	t.Helper()
	fields(t, request, func(_ protowire.Number, series []byte) {
		var key, last string
		var latest int64
		var samples receivedSeries
		fields(t, series, func(n protowire.Number, part []byte) {
			var text [2]string
			var value float64
			var at int64
			fields(t, part, func(i protowire.Number, v []byte) {
				switch {
				case n == seriesLabels:
					text[i-1] = string(v)
				case i == sampleValue:
					value = math.Float64frombits(binary.LittleEndian.Uint64(v))
				default:
					milliseconds, _ := protowire.ConsumeVarint(v)
					at = int64(milliseconds)
				}
			})
			if n == seriesLabels {
				if text[0] <= last || text[1] == "" {
					t.Fatalf("label %q after %q in %s", text, last, key)
				}
				last, key = text[0], key+text[0]+"="+text[1]+","
				return
			}
			if samples == nil {
				if samples = all[key]; samples == nil {
					samples = receivedSeries{}
					all[key] = samples
				}
				for at := range samples {
					latest = max(latest, at)
				}
			}
			if at <= latest {
				t.Fatalf("%s: sample at %d after a sample at %d", key, at, latest)
			}
			latest, samples[at] = at, value
		})
	})
}

func newTestFleet(t *testing.T, o fleetOptions) *fleetModel {
	t.Helper()
	o.epoch = time.Unix(1_000_000, 0)
	f, err := newFleetModel(testScrapes(), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFleetIsDeterministic checks that the requests are the same for the same seed, and differ for another seed.
func TestFleetIsDeterministic(t *testing.T) {
	_, one := receive(t, newTestFleet(t, fleetOptions{nodes: 3, seed: 1, steps: 60}), 60)
	_, again := receive(t, newTestFleet(t, fleetOptions{nodes: 3, seed: 1, steps: 60}), 60)
	_, other := receive(t, newTestFleet(t, fleetOptions{nodes: 3, seed: 2, steps: 60}), 60)
	if !bytes.Equal(one, again) || bytes.Equal(one, other) {
		t.Errorf("equal requests: got %t for the same seed, %t for another seed; want true, false", bytes.Equal(one, again), bytes.Equal(one, other))
	}
}

// TestFleetWindows checks that the series do not depend on the length of the windows.
func TestFleetWindows(t *testing.T) {
	f := newTestFleet(t, fleetOptions{nodes: 12, seed: 1, steps: 500})
	whole, _ := receive(t, f, 500)
	parts, _ := receive(t, f, 60)
	same := func(a, b receivedSeries) bool {
		return maps.EqualFunc(a, b, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
	}
	if len(whole) < 1000 || !maps.EqualFunc(whole, parts, same) {
		t.Errorf("got %d and %d series, or different samples", len(whole), len(parts))
	}
}

// TestFleetOwners checks that each GPU has at most one owner at each step, series end with a stale marker, and counters grow.
func TestFleetOwners(t *testing.T) {
	f := newTestFleet(t, fleetOptions{nodes: 40, seed: 1, steps: 361})
	all, _ := receive(t, f, 60)
	allocated := map[string]int{} // by node and time
	pods, stale, faults, partitioned := map[string]bool{}, 0, 0, 0
	for key, samples := range all {
		last := slices.Max(slices.Collect(maps.Keys(samples)))
		isStale := math.Float64bits(samples[last]) == math.Float64bits(staleMarker)
		whole := !strings.Contains(key, "mig_uuid=")
		switch {
		case strings.HasPrefix(key, "__name__=nvidia_gpu_allocated,"):
			for at, value := range samples {
				if !math.IsNaN(value) {
					allocated[fmt.Sprint(labelOf(key, "uuid"), at)]++
				}
			}
			if name := labelOf(key, "pod"); name != "" {
				pods[name] = true
			}
			if isStale {
				stale++
			}
			if !whole {
				partitioned++
			}
		case strings.HasPrefix(key, "__name__=nvidia_gpu_energy_joules_total,"):
			checkGrowth(t, key, samples)
		case strings.HasPrefix(key, "__name__=nvidia_gpu_xid_last"), strings.HasPrefix(key, "__name__=nvidia_gpu_allocation_last_seen"):
			if isStale {
				t.Errorf("%s ends, want a kept series", key)
			}
			if strings.Contains(key, "xid") {
				faults++
			}
		case strings.HasPrefix(key, "__name__=nvidia_gpu_up,") && whole && len(samples) < 361:
			t.Errorf("%s: %d samples", key, len(samples))
		}
	}
	for at, n := range allocated {
		if n != 1 {
			t.Fatalf("%s: got %d owners, want 1", at, n)
		}
	}
	if want := 40 * gpusPerNode * 361; len(allocated) != want || len(pods) < 150 || stale < 150 || faults == 0 || faults > 40 || partitioned == 0 {
		t.Errorf("%d owners, want %d; %d pods, %d have ended, %d faults, %d MIG devices", len(allocated), want, len(pods), stale, faults, partitioned)
	}
}

// labelOf returns the value of a label in a key.
func labelOf(key, name string) string {
	_, rest, _ := strings.Cut(key, ","+name+"=")
	value, _, _ := strings.Cut(rest, ",")
	return value
}

func checkGrowth(t *testing.T, key string, samples receivedSeries) {
	t.Helper()
	before := 0.0
	for _, at := range slices.Sorted(maps.Keys(samples)) {
		if samples[at] < before {
			t.Errorf("%s falls from %g to %g", key, before, samples[at])
		}
		if !math.IsNaN(samples[at]) {
			before = samples[at]
		}
	}
}

// TestFleetErrors checks the errors for invalid scrapes and a rejected request.
func TestFleetErrors(t *testing.T) {
	if _, err := newFleetModel(nodeScrapes{first: "podgauge_nvml_up 1\n", second: "podgauge_nvml_up 1\n"}, fleetOptions{}); err == nil {
		t.Error("node without GPUs: got no error")
	}
	if _, err := newFleetModel(nodeScrapes{first: "{\n"}, fleetOptions{}); err == nil {
		t.Error("invalid scrape: got no error")
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	r := &writeRequest{}
	r.add([]string{"__name__", "a"}, []int64{1}, []float64{1})
	if err := r.send(t.Context(), server.URL); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("rejected request: got %v, want status 404", err)
	}
}
