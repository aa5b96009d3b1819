package exporter

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// dcgmSeriesLabels returns the labels of GPU-0's series in the format of dcgm-exporter.
func dcgmSeriesLabels(more, container, namespace, pod string) string {
	return `{DCGM_FI_DRIVER_VERSION="580.95.05",` + more + `Hostname="node-a",UUID="GPU-0",container="` + container +
		`",device="nvidia0",gpu="0",modelName="NVIDIA H100",namespace="` + namespace + `",pci_bus_id="00000000:1A:00.0",pod="` + pod + `"}`
}

func dcgmFixture(n int) *scrapeFixture {
	d := newScrapeFixture(n)
	for i := range d.statuses {
		d.statuses[i].InfoLabels = []device.Label{{Name: "driver_version", Value: "580.95.05"}}
	}
	d.metrics = append(append([]device.Metric{}, testMetrics...),
		device.Metric{Name: "nvidia_gpu_pcie_transmit_bytes_total", Help: "Bytes.", Kind: device.OwnerCounter})
	d.node.Devices.Set(d.statuses)
	return d
}

const bytesRow = widthRow + 1

var dcgmOptions = Options{DCGM: true, Hostname: "node-a"}

func TestDCGMFamilies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := dcgmFixture(1)
		d.watts = 300
		d.addEnergy("GPU-0", 2.5)
		d.allocate("GPU-0=team/train/main")
		d.extraSamples = []device.Sample{{Device: "GPU-0", Metric: memoryRow, Value: 3 << 20}, {Device: "GPU-0", Metric: bytesRow, Value: 1000}}
		h := newHandler(New(d.sources(), dcgmOptions))
		text := scrape(t, h)
		of := dcgmSeriesLabels("", "main", "team", "train")
		assertSeries(t, text, "DCGM_FI_DEV_POWER_USAGE"+of+" 300")
		assertSeries(t, text, "DCGM_FI_DEV_SM_CLOCK"+of+" 1980")
		assertSeries(t, text, "DCGM_FI_DEV_MEM_CLOCK"+of+" 2619")
		assertSeries(t, text, "DCGM_FI_DEV_FB_USED"+of+" 3")
		assertSeries(t, text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"+of+" 2500") // the driver's own counter
		assertSeries(t, text, "DCGM_FI_DEV_XID_ERRORS"+strings.Replace(of, `,gpu=`, `,err_code="0",err_msg="No Error",gpu=`, 1)+" 0")
		assertAbsent(t, text, "DCGM_FI_PROF_PCIE_TX_BYTES{") // a rate needs two readings
		assertAbsent(t, text, "DCGM_FI_DEV_GPU_UTIL{")       // not read

		time.Sleep(2 * time.Second)
		d.extraSamples[1].Value = 5000
		assertAbsent(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES{") // rate window below minRateWindow
		time.Sleep(8 * time.Second)
		d.extraSamples[1].Value = 21000
		assertSeries(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES"+of+" 2000")
		time.Sleep(2 * time.Second)
		d.extraSamples[1].Value = 25000
		assertSeries(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES"+of+" 2000") // not changed by another reader
		time.Sleep(8 * time.Second)
		d.extraSamples[1].Value = 10 // the driver restarted
		assertAbsent(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES{")

		time.Sleep(10 * time.Second)
		d.extraSamples[1].Value = 10010
		assertSeries(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES"+of+" 1000")
		d.allocate("GPU-0=team/next/main")
		assertAbsent(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES{") // the rate belongs to the previous owner
		time.Sleep(10 * time.Second)
		d.extraSamples[1].Value = 10110
		assertSeries(t, scrape(t, h), "DCGM_FI_PROF_PCIE_TX_BYTES"+dcgmSeriesLabels("", "main", "team", "next")+" 10")

		d.allocate()
		assertSeries(t, scrape(t, h), "DCGM_FI_DEV_POWER_USAGE"+dcgmSeriesLabels("", "", "", "")+" 300")
		if text := scrape(t, newHandler(New(d.sources(), Options{}))); strings.Contains(text, "DCGM") {
			t.Error("DCGM families without Options.DCGM")
		}
	})
}

// TestDCGMXid checks that the latest Xid of a GPU has its code and text, until it is over.
func TestDCGMXid(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			since, over time.Duration // since Xid 31 and since XidsOverAt
			health      device.Health
			reason      string
			want        string
		}{
			"of a program":                 {time.Second, time.Hour, device.Healthy, "", "31 memory page fault"},
			"of a program, two minutes":    {119 * time.Second, time.Hour, device.Healthy, "", "31 memory page fault"},
			"of a program, long ago":       {2 * time.Minute, time.Hour, device.Healthy, "", "0 No Error"},
			"suspect":                      {10 * time.Minute, time.Hour, device.Suspect, "", "31 memory page fault"},
			"recovered or trusted since":   {time.Second, time.Second, device.Healthy, "", "0 No Error"},
			"recovered before":             {time.Second, 2 * time.Second, device.Healthy, "", "31 memory page fault"},
			"unhealthy in earlier process": {time.Hour, time.Minute, device.Unhealthy, "xid_79", "79 GPU has fallen off the bus"},
			"lost":                         {time.Hour, time.Minute, device.Unhealthy, "lost", "0 No Error"},
			"a later Xid":                  {time.Second, time.Minute, device.Unhealthy, "xid_79", "31 memory page fault"},
		} {
			d, now := dcgmFixture(1), time.Now()
			s := &d.statuses[0]
			s.Xids = []device.Xid{{Code: 13}, {Code: 31, Last: now.Add(-c.since)}, {Code: 79, Last: now.Add(-c.since - time.Second)}}
			s.XidsOverAt, s.Health, s.Reason, s.Healthy = now.Add(-c.over), c.health, c.reason, c.health < device.Unhealthy
			d.node.Devices.Set(d.statuses)
			code, text, _ := strings.Cut(c.want, " ")
			labels := strings.Replace(dcgmSeriesLabels("", "", "", ""), `,gpu=`, `,err_code="`+code+`",err_msg="`+text+`",gpu=`, 1)
			got := regexp.MustCompile("DCGM_FI_DEV_XID_ERRORS{.*").FindString(scrape(t, newHandler(New(d.sources(), dcgmOptions))))
			if want := "DCGM_FI_DEV_XID_ERRORS" + labels + " " + code; got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	})
}

// TestDCGMFamiliesOfMIGDevices checks that a partitioned GPU has a series per GPU instance, with the values of the whole GPU on each.
func TestDCGMFamiliesOfMIGDevices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := dcgmFixture(1)
		d.partition()
		for range 2 { // a second compute instance of the same GPU instance
			d.statuses = append(d.statuses, d.statuses[1])
		}
		d.statuses[3].ID, d.statuses[4].ID = "MIG-2", "MIG-3"
		d.statuses[4].GI = 9
		d.node.Devices.Set(d.statuses)
		d.watts = 300
		d.extraSamples = []device.Sample{{Device: "MIG-0", Metric: memoryRow, Value: 1 << 20}, {Device: "GPU-0", Metric: memoryRow, Value: 9 << 20}}
		d.allocate("MIG-0=n/a/c")
		text := scrape(t, newHandler(New(d.sources(), dcgmOptions)))
		allocated := dcgmSeriesLabels(`GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",`, "c", "n", "a")
		assertSeries(t, text, "DCGM_FI_DEV_POWER_USAGE"+allocated+" 300")
		assertSeries(t, text, "DCGM_FI_DEV_FB_USED"+allocated+" 1")
		assertSeries(t, text, "DCGM_FI_DEV_POWER_USAGE"+dcgmSeriesLabels(`GPU_I_ID="8",GPU_I_PROFILE="1c.3g.40gb+me",`, "", "", "")+" 300")
		assertAbsent(t, text, "DCGM_FI_DEV_FB_USED"+dcgmSeriesLabels(`GPU_I_ID="8",GPU_I_PROFILE="1c.3g.40gb+me",`, "", "", "")) // unlike values of the whole GPU
		if n := strings.Count(text, "\nDCGM_FI_DEV_POWER_USAGE{"); n != 3 {
			t.Errorf("got %d series of three instances\n%s", n, text)
		}
	})
}

// TestMIGDeviceWithReusedInstance checks that a new MIG device does not get the owner of a removed one with the same instance number, which
// is still allocated.
func TestMIGDeviceWithReusedInstance(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := dcgmFixture(1)
		d.partition()
		d.statuses[1].Healthy, d.statuses[1].Reason, d.statuses[1].Gone = false, "gone", true
		d.statuses[2].GI, d.statuses[2].Profile = d.statuses[1].GI, d.statuses[1].Profile
		d.node.Devices.Set(d.statuses)
		d.extraSamples = []device.Sample{{Device: "MIG-1", Metric: memoryRow, Value: 1 << 20}}
		d.allocate("MIG-0=n/old/c")
		text := scrape(t, newHandler(New(d.sources(), dcgmOptions)))
		assertSeries(t, text, "nvidia_gpu_healthy"+migSeriesLabels("MIG-0", "n", "old", "c")+" 0")
		assertSeries(t, text, "nvidia_gpu_memory_used_bytes"+migSeriesLabels("MIG-1", "", "", "")+" 1.048576e+06")
		assertSeries(t, text, "DCGM_FI_DEV_FB_USED"+dcgmSeriesLabels(`GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",`, "", "", "")+" 1")
		if n := strings.Count(text, "\nDCGM_FI_DEV_POWER_USAGE{"); n != 1 {
			t.Errorf("got %d series of one instance\n%s", n, text)
		}

		// The removed device's owner is unknown. Without MIG devices, the series are the GPU's.
		d.statuses[2].Gone = true
		d.node.Devices.Set(d.statuses)
		d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {}}
		text = scrape(t, newHandler(New(d.sources(), dcgmOptions)))
		assertAbsent(t, text, "nvidia_gpu_container_processes{")
		assertAbsent(t, text, "nvidia_gpu_unattributed_processes"+migSeriesLabels("MIG-1", "", "", ""))
		assertSeries(t, text, "DCGM_FI_DEV_POWER_USAGE"+dcgmSeriesLabels("", "", "", "")+" 0")
	})
}

func TestLongPCI(t *testing.T) {
	for in, want := range map[string]string{"0000:1a:00.0": "00000000:1A:00.0", "00000001:1a:00.0": "00000001:1A:00.0", "": "", "000000000:1a:00.0": "000000000:1a:00.0"} {
		if got := longPCIAddress(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
