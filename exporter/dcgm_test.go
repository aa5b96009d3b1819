package exporter_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// dcgmLabels returns the labels of GPU-0's series in the format of dcgm-exporter.
func dcgmLabels(owner string) string {
	o := allocation.Owner{}
	if owner != "-" {
		o = ownerOf(owner)
	}
	return `{DCGM_FI_DRIVER_VERSION="580.95.05",Hostname="node-a",UUID="GPU-0",container="` + o.Container +
		`",device="nvidia0",gpu="0",hostname="node-a",modelName="NVIDIA H100",namespace="` + o.Namespace + `",pci_bus_id="00000000:1A:00.0",pod="` + o.Pod + `"}`
}

var dcgmOptions = exporter.Options{DCGM: dcgm.Defaults(dcgm.V48), Hostname: "node-a"}

// TestDCGMRates checks that a rate is the increase in a window of at least ten seconds with one owner.
func TestDCGMRates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.extraSamples = []device.Sample{{Device: "GPU-0", Metric: bytesRow}}
		h := d.handler(dcgmOptions)
		for _, step := range []struct {
			seconds time.Duration // since the step before
			bytes   float64
			pod     string
			want    string // empty: no rate
		}{
			{0, 1000, "train", ""}, // a rate needs two readings
			{2, 5000, "train", ""},
			{8, 21000, "train", "2000"},
			{2, 25000, "train", "2000"}, // not changed by another reader
			{8, 10, "train", ""},        // the driver restarted
			{10, 10010, "train", "1000"},
			{1, 10010, "next", ""}, // the rate belongs to the previous owner
			{10, 10110, "next", "10"},
		} {
			time.Sleep(step.seconds * time.Second)
			d.extraSamples[0].Value = step.bytes
			d.allocate("GPU-0=team/" + step.pod + "/main")
			want := "!DCGM_FI_PROF_PCIE_TX_BYTES{"
			if step.want != "" {
				want = "DCGM_FI_PROF_PCIE_TX_BYTES" + dcgmLabels("team/"+step.pod+"/main") + " " + step.want
			}
			assertSeries(t, scrape(t, h), want)
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
			d, now := newScrapeFixture(1), time.Now()
			d.publish(func(statuses []device.Status) {
				s := &statuses[0]
				s.Xids = []device.Xid{{Code: 13}, {Code: 31, Last: now.Add(-c.since)}, {Code: 79, Last: now.Add(-c.since - time.Second)}}
				s.XidsOverAt, s.Health, s.Reason, s.Healthy = now.Add(-c.over), c.health, c.reason, c.health < device.Unhealthy
			})
			code, text, _ := strings.Cut(c.want, " ")
			labels := strings.Replace(dcgmLabels("-"), `,gpu=`, `,err_code="`+code+`",err_msg="`+text+`",gpu=`, 1)
			t.Log(name)
			assertSeries(t, scrape(t, d.handler(dcgmOptions)), "DCGM_FI_DEV_XID_ERRORS"+labels+" "+code)
		}
	})
}

// TestDCGMValues checks sums, bits, quotients, texts and units of counters files in both generations of names.
func TestDCGMValues(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		readings := map[string]float64{
			"nvidia_gpu_bar1_memory_total_bytes": 256 << 20, "nvidia_gpu_bar1_memory_used_bytes": 6 << 20,
			"nvidia_gpu_memory_total_bytes": 100, "nvidia_gpu_memory_reserved_bytes": 20, "nvidia_gpu_memory_used_bytes": 60,
			`nvidia_gpu_throttle_active{reason="sw_power_cap"}`: 1, `nvidia_gpu_throttle_active{reason="reliability"}`: 1,
			`nvidia_gpu_throttle_seconds_total{reason="sw_power_cap"}`: 2.5,
			`nvidia_gpu_compute_mode{mode="default"}`:                  1, `nvidia_gpu_fan_speed_ratio{fan="0"}`: 0.29,
		}
		for _, c := range []struct{ field, without, want string }{
			{"DCGM_FI_DEV_BAR1_FREE", "", "250"},
			{"DCGM_FI_DEV_BAR1_FREE_BYTES", "", "2.62144e+08"},
			{"DCGM_FI_DEV_FB_USED_PERCENT", "", "0.75"},
			{"DCGM_FI_DEV_FB_USED_PERCENT", "nvidia_gpu_memory_reserved_bytes", ""},
			{"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "", "1028"},
			{"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", `nvidia_gpu_throttle_active{reason="hw_power_brake"}`, "1028"},
			{"DCGM_FI_DEV_COMPUTE_MODE", "", "0"},
			{"DCGM_FI_DEV_FAN_SPEED", "", "29"},
			{"DCGM_FI_DEV_POWER_VIOLATION", "", "2.5e+09"},
			{"DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", "", "2.5"},
			{"DCGM_FI_DEV_MINOR_NUMBER", "", "0"},
		} {
			d := newScrapeFixture(1)
			d.metrics = slices.Clone(testMetrics)
			field, _ := dcgm.Find(c.field)
			for _, source := range slices.Concat(field.Sources, field.Per) {
				if source.Selector == c.without {
					continue
				}
				m := device.Metric{Name: source.Family(), Help: "Help."}
				if name, value, ok := strings.Cut(strings.TrimPrefix(source.Selector, m.Name+"{"), `="`); ok {
					m.Labels = []device.Label{{Name: name, Value: strings.TrimSuffix(value, `"}`)}}
				}
				d.extraSamples = append(d.extraSamples, device.Sample{Device: "GPU-0", Metric: len(d.metrics), Value: readings[source.Selector]})
				d.metrics = append(d.metrics, m)
			}
			counters := dcgm.Parse("file", c.field+",gauge,Help.\nDCGM_FI_DEV_PCI_BUSID,label,Address.", dcgm.V48)
			labels := strings.Replace(dcgmLabels("-"), `DCGM_FI_DRIVER_VERSION="580.95.05"`, `DCGM_FI_DEV_PCI_BUSID="00000000:1A:00.0"`, 1)
			want := c.field + labels + " " + c.want
			if c.want == "" {
				want = "!" + c.field + "{"
			}
			assertSeries(t, scrape(t, d.handler(exporter.Options{DCGM: counters, Hostname: "node-a"})), want)
		}
	})
}

// TestDCGMBothGenerations checks that a name of both generations has one series with the labels of both.
func TestDCGMBothGenerations(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.watts, d.extraSamples = 70, []device.Sample{{Device: "GPU-0", Metric: bytesRow}}
		h := d.handler(exporter.Options{DCGM: dcgm.Defaults(dcgm.V48, dcgm.V49), Hostname: "node-a"})
		scrape(t, h)
		time.Sleep(10 * time.Second)
		old := dcgmLabels("-")
		renamed := strings.NewReplacer(`DCGM_FI_DRIVER_VERSION`, `DCGM_FI_SYSTEM_DRIVER_VERSION`, `Hostname="node-a",`, "")
		both := strings.NewReplacer(`Hostname=`, `DCGM_FI_SYSTEM_DRIVER_VERSION="580.95.05",Hostname=`)
		text := scrape(t, h)
		assertSeries(t, text, "DCGM_FI_DEV_POWER_USAGE"+old+" 70", "DCGM_FI_DEV_BOARD_POWER_WATTS"+renamed.Replace(old)+" 70",
			"DCGM_FI_PROF_PCIE_TX_BYTES"+both.Replace(old)+" 0")
		if n := strings.Count(text, "\nDCGM_FI_PROF_PCIE_TX_BYTES{"); n != 1 {
			t.Errorf("got %d series of DCGM_FI_PROF_PCIE_TX_BYTES, want 1", n)
		}
	})
}
