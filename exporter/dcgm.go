package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// DCGMFamily is a family of dcgm-exporter. Existing dashboards, alerts and autoscalers work with these during a migration.
type DCGMFamily struct {
	Family
	flags   uint8
	Sources []string // names of rows, as device.Metric.RowName; the family is their sum
	scale   float64  // from podgauge's unit to dcgm-exporter's
}

// Flags of a DCGMFamily.
const (
	// dcgmRate families are the sum's increase per second.
	dcgmRate = 1 << iota
	// dcgmWholeGPU families have the GPU's value on each MIG device.
	dcgmWholeGPU
)

const mebi = 1.0 / (1 << 20)

// DCGMFamilies are the families of dcgm-exporter's default-counters.csv available from NVML, with types and helps of that file
// (https://github.com/NVIDIA/dcgm-exporter, etc/, 4.8). DCGM_FI_DEV_VGPU_LICENSE_STATUS is
// left out: it exists in virtual machines only.
var DCGMFamilies = [...]DCGMFamily{
	{gauge(full, dcgmXidFamily, "Value of the last XID error encountered.", "err_code", "err_msg"), 0, nil, 0}, // of the device's status
	{gauge(full, "DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)."), dcgmWholeGPU, []string{"nvidia_gpu_clock_hertz{sm}"}, 1e-6},
	{gauge(full, "DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz)."), dcgmWholeGPU, []string{"nvidia_gpu_clock_hertz{memory}"}, 1e-6},
	{gauge(full, "DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C)."), dcgmWholeGPU, []string{"nvidia_gpu_temperature_celsius{memory}"}, 1},
	{gauge(full, "DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)."), dcgmWholeGPU, []string{"nvidia_gpu_temperature_celsius{gpu}"}, 1},
	{gauge(full, "DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)."), dcgmWholeGPU, []string{"nvidia_gpu_power_watts"}, 1},
	{counter(full, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ)."), dcgmWholeGPU, []string{"nvidia_gpu_energy_joules_total"}, 1000},
	{counter(full, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries."), dcgmWholeGPU, []string{"nvidia_gpu_pcie_replays_total"}, 1},
	{gauge(full, "DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)."), 0, []string{"nvidia_gpu_utilization_ratio"}, 100},
	{gauge(full, "DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)."), 0, []string{"nvidia_gpu_memory_controller_utilization_ratio"}, 100},
	{gauge(full, "DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %)."), 0, []string{"nvidia_gpu_encoder_utilization_ratio"}, 100},
	{gauge(full, "DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %)."), 0, []string{"nvidia_gpu_decoder_utilization_ratio"}, 100},
	{gauge(full, "DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)."), 0, []string{"nvidia_gpu_memory_free_bytes"}, mebi},
	{gauge(full, "DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)."), 0, []string{"nvidia_gpu_memory_used_bytes"}, mebi},
	{gauge(full, "DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB)."), 0, []string{"nvidia_gpu_memory_reserved_bytes"}, mebi},
	{counter(full, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes."), dcgmWholeGPU, []string{"nvidia_gpu_nvlink_transmit_bytes_total", "nvidia_gpu_nvlink_receive_bytes_total"}, 1.0 / 1024},
	{counter(full, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors"), dcgmWholeGPU, []string{"nvidia_gpu_remapped_rows{uncorrectable}"}, 1},
	{counter(full, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors"), dcgmWholeGPU, []string{"nvidia_gpu_remapped_rows{correctable}"}, 1},
	{gauge(full, "DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed"), dcgmWholeGPU, []string{"nvidia_gpu_row_remap_failure"}, 1},
	{gauge(full, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."), 0, []string{"nvidia_gpu_graphics_engine_active_ratio"}, 1},
	{gauge(full, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active."), 0, []string{"nvidia_gpu_pipe_active_ratio{tensor}"}, 1},
	{gauge(full, "DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data."), 0, []string{"nvidia_gpu_dram_bandwidth_utilization_ratio"}, 1},
	{gauge(full, "DCGM_FI_PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second."), dcgmRate | dcgmWholeGPU, []string{"nvidia_gpu_pcie_transmit_bytes_total"}, 1},
	{gauge(full, "DCGM_FI_PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second."), dcgmRate | dcgmWholeGPU, []string{"nvidia_gpu_pcie_receive_bytes_total"}, 1},
}

const dcgmXidFamily = "DCGM_FI_DEV_XID_ERRORS"

// dcgmSeries renders the families.
type dcgmSeries struct {
	families [][]int // indexes of DCGMFamilies, by row of Sources.Metrics; nil without Options.DCGM
	device   dcgmValues
	gpu      dcgmValues // of the GPU of a MIG device
	rates    rateTracker
}

// dcgmValues are sums by index of DCGMFamilies.
type dcgmValues struct {
	sums    [len(DCGMFamilies)]float64
	present [len(DCGMFamilies)]bool
}

func newDCGMSeries(metrics []device.Metric) dcgmSeries {
	s := dcgmSeries{families: make([][]int, len(metrics)), rates: rateTracker{}}
	for i, m := range metrics {
		for index, f := range DCGMFamilies {
			if slices.Contains(f.Sources, m.RowName()) {
				s.families[i] = append(s.families[i], index)
			}
		}
	}
	return s
}

// render renders a device as dcgm-exporter does: a whole GPU, or each GPU instance of a partitioned GPU.
func (c *dcgmSeries) render(d *deviceRendering, samples []device.Sample) {
	if c.families == nil {
		return
	}
	c.sum(d.status.ID, samples)
	if d.status.WholeGPU() {
		c.gpu = c.device
		if d.status.MIGEnabled && slices.ContainsFunc(d.gpu, func(s device.Status) bool { return !s.WholeGPU() && !s.Gone }) {
			return
		}
	} else if !isFirstOfInstance(d.status, d.gpu) {
		return
	}
	group := d.group(append(ownerLabels(d.readingOwner), dcgmDeviceLabels(d.status, d.options.Hostname)...))
	for index := range DCGMFamilies {
		f := &DCGMFamilies[index]
		v, ok := c.device.sums[index], c.device.present[index]
		if !ok && f.flags&dcgmWholeGPU != 0 {
			v, ok = c.gpu.sums[index], c.gpu.present[index]
		}
		if ok && f.flags&dcgmRate != 0 {
			v, ok = c.rates.update(rateKey{d.status.ID, index}, d.readingOwner, v, d.snapshot.end)
		}
		if ok {
			group.set(f.Name, v)
		}
	}
	number := currentXid(d.gpu[0], d.snapshot.end)
	group.set(dcgmXidFamily, float64(number), strconv.FormatUint(number, 10), dcgmXidText(number))
}

// sum sums the samples of a device by family.
func (c *dcgmSeries) sum(id device.ID, samples []device.Sample) {
	c.device = dcgmValues{}
	for _, s := range samples {
		if s.Device == id {
			for _, index := range c.families[s.Metric] {
				c.device.sums[index] += s.Value * DCGMFamilies[index].scale
				c.device.present[index] = true
			}
		}
	}
}

// isFirstOfInstance reports whether a MIG device is the first one of its GPU instance. A device that is gone has no instance.
func isFirstOfInstance(d device.Status, gpu []device.Status) bool {
	for _, other := range gpu {
		if other.ID == d.ID {
			return !d.Gone
		}
		if sameGPUInstance(d, other) {
			return false
		}
	}
	return true
}

// currentXid returns the code of a GPU's latest Xid; 0 if it is over. dcgm-exporter keeps the code until a restart.
func currentXid(gpu device.Status, now time.Time) uint64 {
	last := device.Xid{Last: gpu.XidsOverAt}
	last.Code, _ = xid.OfReason(gpu.Reason)
	for _, x := range gpu.Xids {
		if x.Last.After(last.Last) && (gpu.Health != device.Healthy || now.Sub(x.Last) < harmlessXidAge) {
			last = x
		}
	}
	return last.Code
}

// dcgmXidText returns an Xid in words, and dcgm-exporter's words without any.
func dcgmXidText(number uint64) string {
	if number == 0 {
		return "No Error"
	}
	return cmp.Or(xid.Xids[number].Name, "Unknown Error")
}

const (
	// harmlessXidAge is how long the Xid of a GPU that stays healthy counts, as of a program: long enough for two scrapes.
	harmlessXidAge = 2 * time.Minute
	// minRateWindow is the shortest window of a rate. Within the window the previous rate stands, so a frequent reader shortens
	// no window.
	minRateWindow = 10 * time.Second
	// maxRateAge is how long a rate outlives its last update.
	maxRateAge = time.Hour
)

// rateTracker turns counters into rates.
type rateTracker map[rateKey]rateWindow

type rateKey struct {
	device device.ID
	row    int
}

// rateWindow is a counter at the begin of a window, and the rate in the previous window.
type rateWindow struct {
	owner device.Owner
	value float64
	begin time.Time
	rate  float64
	known bool
}

// update returns a counter's increase per second in the last window; false if no window has ended since the device got this
// owner, or if the counter restarted.
func (t rateTracker) update(key rateKey, owner device.Owner, value float64, now time.Time) (float64, bool) {
	last, ok := t[key]
	if ok && last.owner != owner {
		last, ok = rateWindow{}, false
	}
	elapsed := now.Sub(last.begin)
	if ok && elapsed < minRateWindow {
		return last.rate, last.known
	}
	rate := (value - last.value) / elapsed.Seconds()
	known := ok && rate >= 0
	t[key] = rateWindow{owner, value, now, rate, known}
	return rate, known
}

func (t rateTracker) prune(now time.Time) {
	maps.DeleteFunc(t, func(_ rateKey, last rateWindow) bool { return now.Sub(last.begin) > maxRateAge })
}
