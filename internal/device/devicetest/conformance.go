// Package devicetest holds a device.Backend to what the interface promises: every
// backend's tests run it.
package devicetest

import (
	"context"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxWait is longer than any Wait may take, on a busy machine too.
const maxWait = 10 * time.Second

// TestBackend tests a backend on which there is at least one GPU, all are well, and
// nothing happens meanwhile.
func TestBackend(t *testing.T, b device.Backend) {
	t.Helper()
	devices, err := b.Devices(t.Context())
	if err != nil || len(devices) == 0 {
		t.Fatalf("Devices: %d of them, %v", len(devices), err)
	}
	t.Run("metrics", func(t *testing.T) { testMetrics(t, b) })
	t.Run("devices", func(t *testing.T) { testDevices(t, b, devices) })
	if linker, can := b.(device.LinkReader); can {
		t.Run("links", func(t *testing.T) { testLinks(t, linker, devices) })
	}
	for _, d := range devices {
		t.Run("read "+string(d.ID), func(t *testing.T) { testRead(t, b, d) })
	}
	t.Run("a GPU that is not there", func(t *testing.T) { testUnknownGPU(t, b) })
	t.Run("wait", func(t *testing.T) { testWait(t, b) })
}

func testMetrics(t *testing.T, b device.Backend) {
	rows := b.Metrics()
	if !reflect.DeepEqual(rows, b.Metrics()) {
		t.Error("the rows are not the same each time")
	}
	families := map[string]device.Metric{}
	for _, row := range rows {
		if row.Name == "" || row.Help == "" {
			t.Errorf("a row has no name or help: %+v", row)
		}
		first, known := families[row.Name]
		if known && (first.Help != row.Help || first.Kind != row.Kind || len(first.Labels) != len(row.Labels)) {
			t.Errorf("two rows of %s differ in more than their labels' values", row.Name)
		}
		families[row.Name] = row
	}
}

func testDevices(t *testing.T, b device.Backend, devices []device.Device) {
	seen := map[device.ID]bool{}
	for i, d := range devices {
		if d.ID == "" || d.GPU == "" || seen[d.ID] {
			t.Errorf("a device has no identity of its own: %+v", d)
		}
		if d.NUMANode < -1 || d.Minor < -1 || d.Index < 0 {
			t.Errorf("a device has a number that none can have: %+v", d)
		}
		if len(d.InfoLabels) != len(devices[0].InfoLabels) {
			t.Errorf("%s has other facts than %s", d.ID, devices[0].ID)
		}
		if i > 0 && devices[i-1].Compare(d) >= 0 {
			t.Errorf("%s is listed behind %s", d.ID, devices[i-1].ID)
		}
		seen[d.ID] = true
		testMIGDevice(t, d, devices)
	}
	second, err := b.Devices(t.Context())
	if err != nil || !reflect.DeepEqual(devices, second) {
		t.Errorf("the second listing differs, though nothing has happened: %v", err)
	}
}

// testMIGDevice holds a device to its GPU: a slice has one in MIG mode, of which it is
// a part, and instances of its own.
func testMIGDevice(t *testing.T, d device.Device, devices []device.Device) {
	if d.WholeGPU() {
		if d.MIGDeviceIndex != -1 || d.GI != -1 || d.CI != -1 || d.Profile != "" {
			t.Errorf("a GPU is said to be a slice: %+v", d)
		}
		return
	}
	if d.MIGEnabled || d.MIGDeviceIndex < 0 || d.GI < 0 || d.CI < 0 || d.Profile == "" || d.MemoryBytes == 0 {
		t.Errorf("a slice lacks what makes one: %+v", d)
	}
	found := false
	for _, o := range devices {
		if o.GPU != d.GPU {
			continue
		}
		if o.Index != d.Index || o.Minor != d.Minor || o.Model != d.Model || o.PCI != d.PCI || o.NUMANode != d.NUMANode {
			t.Errorf("%s and %s are of one GPU, and elsewhere", d.ID, o.ID)
		}
		found = found || o.WholeGPU() && o.MIGEnabled
		if o.ID != d.ID && o.GI == d.GI && o.CI == d.CI {
			t.Errorf("%s and %s are one instance", d.ID, o.ID)
		}
	}
	if !found {
		t.Errorf("%s has no GPU in MIG mode", d.ID)
	}
}

func testLinks(t *testing.T, l device.LinkReader, devices []device.Device) {
	gpus := map[device.GPU]bool{}
	for _, d := range devices {
		gpus[d.GPU] = true
	}
	list, err := l.Links(t.Context())
	if err != nil || list == nil {
		t.Fatalf("Links: %v, %v", list, err)
	}
	seen := map[[2]device.GPU]bool{}
	for _, link := range list {
		pair := [2]device.GPU{link.A, link.B}
		if link.A == link.B || !gpus[link.A] || !gpus[link.B] || seen[pair] || link.NVLinks < 0 {
			t.Errorf("%+v is no link, or is there twice", link)
		}
		seen[pair] = true
	}
	if second, err := l.Links(t.Context()); err != nil || !reflect.DeepEqual(list, second) {
		t.Errorf("the second reading differs, though nothing has happened: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if partial, err := l.Links(ctx); err != nil && partial != nil {
		t.Errorf("Links when ctx is done: %v beside %v", partial, err)
	}
}

func testRead(t *testing.T, b device.Backend, d device.Device) {
	before := device.Sample{Device: "another", Metric: 1, Value: 2}
	samples, err := b.Read(d.GPU, []device.Sample{before})
	if err != nil || len(samples) < 2 || samples[0] != before {
		t.Fatalf("Read does not append: %d samples, %v", len(samples), err)
	}
	seen := map[int]bool{}
	for _, s := range samples[1:] {
		if s.Metric < 0 || s.Metric >= len(b.Metrics()) || seen[s.Metric] && s.Device == d.ID {
			t.Errorf("%+v has no row, or had one before", s)
			continue
		}
		if math.IsNaN(s.Value) || math.IsInf(s.Value, 0) {
			t.Errorf("%s is %f: what is absent is not there", b.Metrics()[s.Metric].Name, s.Value)
		}
		seen[s.Metric] = seen[s.Metric] || s.Device == d.ID
	}
	first, err := b.Check(d.GPU)
	if err != nil {
		t.Errorf("Check: %v", err)
	}
	if second, err := b.Check(d.GPU); err != nil || second.Resets != first.Resets {
		t.Errorf("resets went from %d to %d, though nothing has happened: %v", first.Resets, second.Resets, err)
	}
}

func testUnknownGPU(t *testing.T, b device.Backend) {
	if samples, err := b.Read("GPU-that-is-not-there", nil); err == nil || len(samples) > 0 {
		t.Errorf("Read: %v, %v", samples, err)
	}
	if _, err := b.Check("GPU-that-is-not-there"); err == nil {
		t.Error("Check finds nothing wrong with it")
	}
}

func testWait(t *testing.T, b device.Backend) {
	began := time.Now()
	event, err := b.Wait(t.Context())
	if took := time.Since(began); err != nil || event != (device.Event{}) || took > maxWait {
		t.Errorf("Wait: %+v, %v after %s; want nothing, in a few seconds", event, err, took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if event, err := b.Wait(ctx); err != nil || event != (device.Event{}) {
		t.Errorf("Wait when ctx is done: %+v, %v", event, err)
	}
}
