package device_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestIdentities(t *testing.T) {
	const id = device.ID("GPU-5eed")
	for advertised, want := range map[device.AdvertisedID]device.ID{
		id.Advertised(): id, "GPU-5eed::0": id, "GPU-5eed::12": id, "MIG-1/2/3": "MIG-1/2/3", "": "", "::3": "",
	} {
		expect.Equal(t, advertised.Device(), want, "device of", advertised)
	}
	if d := (device.Device{ID: id, GPU: "GPU-5eed"}); !d.WholeGPU() {
		t.Error("whole GPU reported as MIG device")
	}
	if d := (device.Device{ID: "MIG-1", GPU: "GPU-5eed"}); d.WholeGPU() {
		t.Error("MIG device reported as whole GPU")
	}
}

func TestDeviceCompare(t *testing.T) {
	want := []device.Device{
		{ID: "GPU-b", GPU: "GPU-b", Index: 0, MIGDeviceIndex: -1},
		{ID: "GPU-a", GPU: "GPU-a", Index: 1, MIGDeviceIndex: -1, MIGEnabled: true},
		{ID: "MIG-y", GPU: "GPU-a", Index: 1, MIGDeviceIndex: 0},
		{ID: "MIG-x", GPU: "GPU-a", Index: 1, MIGDeviceIndex: 3},
		{ID: "GPU-c", GPU: "GPU-c", Index: 1, MIGDeviceIndex: -1}, // GPU-a or GPU-c was removed
	}
	for i, a := range want {
		for j, b := range want {
			expect.Equal(t, a.Compare(b), cmp.Compare(i, j), a.ID, "compared with", b.ID)
		}
	}
}

// TestHealthTimes checks that a time never decreases, also if the clock of a reader is behind, and that earlier times remain as they are.
func TestHealthTimes(t *testing.T) {
	begun := time.Now()
	first := device.HealthTimes(nil).Enter(device.Healthy, "", begun)
	second := first.Enter(device.Unhealthy, "lost", begun.Add(10*time.Second)).Enter(device.Unhealthy, "lost", begun.Add(20*time.Second))
	last := second.Enter(device.Healthy, "", begun.Add(25*time.Second))
	for _, row := range []struct {
		times       device.HealthTimes
		at          time.Duration
		first, lost time.Duration
	}{
		{first, 5 * time.Second, 5 * time.Second, 0},
		{first, -time.Hour, 0, 0},
		{second, 22 * time.Second, 10 * time.Second, 12 * time.Second},
		{second, -time.Hour, 10 * time.Second, 0},
		{last, 30 * time.Second, 15 * time.Second, 15 * time.Second},
		{last, 20 * time.Second, 10 * time.Second, 15 * time.Second},
	} {
		got := map[device.Health]time.Duration{}
		for _, s := range row.times {
			got[s.Health] = s.Until(begun.Add(row.at))
		}
		expect.Equal(t, got[device.Healthy], row.first, "healthy at", row.at)
		expect.Equal(t, got[device.Unhealthy], row.lost, "unhealthy at", row.at)
	}
}
