// Package devicetest tests that a device.Backend meets the contract of the
// interface.
package devicetest

import (
	"context"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxWait is longer than any Wait, even on a busy machine.
const maxWait = 10 * time.Second

// TestBackend tests a backend with at least one GPU. All GPUs must be healthy,
// and must not change during the test.
func TestBackend(t *testing.T, b device.Backend) {
	t.Helper()
	devices, err := b.Devices(t.Context())
	if err != nil || len(devices) == 0 {
		t.Fatalf("Devices: got %d devices, error %v, want at least one", len(devices), err)
	}
	t.Run("metrics", func(t *testing.T) { testMetrics(t, b) })
	t.Run("devices", func(t *testing.T) { testDevices(t, b, devices) })
	t.Run("links", func(t *testing.T) { testLinks(t, b, devices) })
	for _, d := range devices {
		t.Run("read "+string(d.ID), func(t *testing.T) { testRead(t, b, d) })
	}
	t.Run("unknown GPU", func(t *testing.T) { testUnknownGPU(t, b) })
	t.Run("wait", func(t *testing.T) { testWait(t, b) })
}

func testMetrics(t *testing.T, b device.Backend) {
	rows := b.Metrics()
	if !reflect.DeepEqual(rows, b.Metrics()) {
		t.Error("second call of Metrics: got different rows")
	}
	families := map[string]device.Metric{}
	for _, row := range rows {
		if row.Name == "" || row.Help == "" {
			t.Errorf("row without a name or help: %+v", row)
		}
		first, known := families[row.Name]
		if known && (first.Help != row.Help || first.Kind != row.Kind || len(first.Labels) != len(row.Labels)) {
			t.Errorf("rows of %s differ in more than label values", row.Name)
		}
		families[row.Name] = row
	}
}

func testDevices(t *testing.T, b device.Backend, devices []device.Device) {
	seen := map[device.ID]bool{}
	for i, d := range devices {
		if d.ID == "" || d.GPU == "" || seen[d.ID] {
			t.Errorf("device without a unique id: %+v", d)
		}
		if d.NUMANode < -1 || d.Minor < -1 || d.Index < 0 {
			t.Errorf("device with an invalid number: %+v", d)
		}
		if len(d.InfoLabels) != len(devices[0].InfoLabels) {
			t.Errorf("info labels of %s differ from those of %s", d.ID, devices[0].ID)
		}
		if i > 0 && devices[i-1].Compare(d) >= 0 {
			t.Errorf("order of the listing: got %s after %s", d.ID, devices[i-1].ID)
		}
		seen[d.ID] = true
		testMIGDevice(t, d, devices)
	}
	second, err := b.Devices(t.Context())
	if err != nil || !reflect.DeepEqual(devices, second) {
		t.Errorf("second listing: got a different list, error %v", err)
	}
}

// testMIGDevice tests that a MIG device belongs to a MIG-enabled GPU, and that
// no other device has its instances.
func testMIGDevice(t *testing.T, d device.Device, devices []device.Device) {
	if d.WholeGPU() {
		if d.MIGDeviceIndex != -1 || d.GI != -1 || d.CI != -1 || d.Profile != "" {
			t.Errorf("whole GPU with fields of a MIG device: %+v", d)
		}
		return
	}
	if d.MIGEnabled || d.MIGDeviceIndex < 0 || d.GI < 0 || d.CI < 0 || d.Profile == "" || d.MemoryBytes == 0 {
		t.Errorf("MIG device with incomplete fields: %+v", d)
	}
	for _, o := range devices {
		if o.ID != d.ID && o.GPU == d.GPU && o.GI == d.GI && o.CI == d.CI {
			t.Errorf("%s and %s have the same instances", d.ID, o.ID)
		}
	}
	i := slices.IndexFunc(devices, func(o device.Device) bool { return o.GPU == d.GPU && o.WholeGPU() && o.MIGEnabled })
	if i < 0 {
		t.Errorf("%s has no MIG-enabled GPU", d.ID)
		return
	}
	if o := devices[i]; o.Index != d.Index || o.Minor != d.Minor || o.Model != d.Model || o.PCI != d.PCI ||
		o.NUMANode != d.NUMANode {
		t.Errorf("%s and %s belong to one GPU, but differ in fields of the GPU", d.ID, o.ID)
	}
}

func testLinks(t *testing.T, b device.Backend, devices []device.Device) {
	gpus := map[device.GPU]bool{}
	for _, d := range devices {
		gpus[d.GPU] = true
	}
	list, err := b.Links(t.Context())
	if err != nil || list == nil {
		t.Fatalf("Links: got %v, error %v, want a list", list, err)
	}
	seen := map[[2]device.GPU]bool{}
	for _, link := range list {
		pair := [2]device.GPU{link.A, link.B}
		if link.A == link.B || !gpus[link.A] || !gpus[link.B] || seen[pair] || link.NVLinks < 0 {
			t.Errorf("%+v is invalid or listed twice", link)
		}
		seen[pair] = true
	}
}

func testRead(t *testing.T, b device.Backend, d device.Device) {
	samples, err := b.Read(d.GPU)
	if err != nil || len(samples) == 0 {
		t.Fatalf("Read: got %d samples, error %v", len(samples), err)
	}
	seen := map[int]bool{}
	for _, s := range samples {
		if s.Metric < 0 || s.Metric >= len(b.Metrics()) || seen[s.Metric] && s.Device == d.ID {
			t.Errorf("%+v has no row, or is a duplicate", s)
			continue
		}
		if math.IsNaN(s.Value) || math.IsInf(s.Value, 0) {
			t.Errorf("%s: got %f, want no sample for an absent value", b.Metrics()[s.Metric].Name, s.Value)
		}
		seen[s.Metric] = seen[s.Metric] || s.Device == d.ID
	}
	first, err := b.Check(d.GPU)
	if err != nil {
		t.Errorf("Check: %v", err)
	}
	if second, err := b.Check(d.GPU); err != nil || second.Resets != first.Resets {
		t.Errorf("resets: got %d, then %d without a reset, error %v", first.Resets, second.Resets, err)
	}
}

func testUnknownGPU(t *testing.T, b device.Backend) {
	if samples, err := b.Read("GPU-unknown"); err == nil || len(samples) > 0 {
		t.Errorf("Read: got %v, error %v, want an error", samples, err)
	}
	if _, err := b.Check("GPU-unknown"); err == nil {
		t.Error("Check: got no error")
	}
}

func testWait(t *testing.T, b device.Backend) {
	began := time.Now()
	event, err := b.Wait(t.Context())
	if took := time.Since(began); err != nil || event != (device.Event{}) || took > maxWait {
		t.Errorf("Wait: got %+v, error %v after %s, want the zero Event within seconds", event, err, took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if event, err := b.Wait(ctx); err != nil || event != (device.Event{}) {
		t.Errorf("Wait after the end of ctx: got %+v, error %v, want the zero Event", event, err)
	}
}
