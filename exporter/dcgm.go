package exporter

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// dcgmFamily is a family of dcgm-exporter's, and what it is made of: so dashboards, alerts
// and autoscalers go on working while people move from one to the other.
type dcgmFamily struct {
	name, help string
	flags      dcgmFlags
	// sources are rows of a backend, by name and label's value; the family is their sum.
	sources []dcgmSource
	// scale turns our unit into theirs.
	scale float64
}

// dcgmFlags is what sets a row apart.
type dcgmFlags uint8

const (
	dcgmCounter dcgmFlags = 1 << iota
	// dcgmRate has the family be what the sum rose by a second since the last flight.
	dcgmRate
	// dcgmWholeGPU is what no slice has of its own: each shows its GPU's.
	dcgmWholeGPU
)

func (f *dcgmFamily) has(flag dcgmFlags) bool { return f.flags&flag != 0 }

type dcgmSource struct{ metric, label string }

const mebi = 1.0 / (1 << 20)

// dcgmFamilies are the families of dcgm-exporter's default-counters.csv that NVML can give,
// with that file's types and helps (https://github.com/NVIDIA/dcgm-exporter, etc/, 4.8).
// DCGM_FI_DEV_XID_ERRORS is not made of a row, and DCGM_FI_DEV_VGPU_LICENSE_STATUS is of
// virtual machines alone.
var dcgmFamilies = []dcgmFamily{
	{"DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_clock_hertz", "sm"}}, 1e-6},
	{"DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_clock_hertz", "memory"}}, 1e-6},
	{"DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_temperature_celsius", "memory"}}, 1},
	{"DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_temperature_celsius", "gpu"}}, 1},
	{"DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_power_watts", ""}}, 1},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", dcgmCounter | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_energy_joules_total", ""}}, 1000},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", dcgmCounter | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_pcie_replays_total", ""}}, 1},
	{"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", 0, []dcgmSource{{"nvidia_gpu_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", 0, []dcgmSource{{"nvidia_gpu_memory_controller_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", 0, []dcgmSource{{"nvidia_gpu_encoder_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", 0, []dcgmSource{{"nvidia_gpu_decoder_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", 0, []dcgmSource{{"nvidia_gpu_memory_free_bytes", ""}}, mebi},
	{"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", 0, []dcgmSource{{"nvidia_gpu_memory_used_bytes", ""}}, mebi},
	{"DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", 0, []dcgmSource{{"nvidia_gpu_memory_reserved_bytes", ""}}, mebi},
	{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes.", dcgmCounter | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_nvlink_transmit_bytes_total", ""}, {"nvidia_gpu_nvlink_receive_bytes_total", ""}}, 1.0 / 1024},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors", dcgmCounter | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_remapped_rows", "uncorrectable"}}, 1},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors", dcgmCounter | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_remapped_rows", "correctable"}}, 1},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_row_remap_failure", ""}}, 1},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", 0, []dcgmSource{{"nvidia_gpu_graphics_engine_active_ratio", ""}}, 1},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", 0, []dcgmSource{{"nvidia_gpu_pipe_active_ratio", "tensor"}}, 1},
	{"DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.", 0, []dcgmSource{{"nvidia_gpu_dram_bandwidth_utilization_ratio", ""}}, 1},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.", dcgmRate | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_pcie_transmit_bytes_total", ""}}, 1},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.", dcgmRate | dcgmWholeGPU, []dcgmSource{{"nvidia_gpu_pcie_receive_bytes_total", ""}}, 1},
}

// dcgmSeries are these families on a page; the zero one has none.
type dcgmSeries struct {
	families []*family // as dcgmFamilies
	xid      *family
	// familyIndexes are the rows of dcgmFamilies that a row of the backend is a part of.
	familyIndexes [][]int
	// sums are what was read for the device that is being written, and has which of them
	// were; for a slice, what it has not is its GPU's.
	sums, gpuSums       []float64
	present, gpuPresent []bool
	rates               rateTracker
}

func (d *dcgmSeries) register(metrics []device.Metric, add func(familyDesc) *family) {
	for _, r := range dcgmFamilies {
		d.families = append(d.families, add(familyDesc{name: r.name, help: r.help, counter: r.has(dcgmCounter)}))
	}
	d.xid = add(gaugeDesc("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered."))
	d.familyIndexes = make([][]int, len(metrics))
	for i, m := range metrics {
		for index, r := range dcgmFamilies {
			if slices.ContainsFunc(r.sources, func(f dcgmSource) bool { return f.matches(m) }) {
				d.familyIndexes[i] = append(d.familyIndexes[i], index)
			}
		}
	}
	n := len(dcgmFamilies)
	d.sums, d.present, d.gpuSums, d.gpuPresent = make([]float64, n), make([]bool, n), make([]float64, n), make([]bool, n)
}

// matches tells whether a row is meant.
func (s dcgmSource) matches(m device.Metric) bool {
	if m.Name != s.metric || (len(m.Labels) == 0) != (s.label == "") {
		return false
	}
	return len(m.Labels) == 0 || len(m.Labels) == 1 && m.Labels[0].Value == s.label
}

// DCGMSources are dcgm-exporter's families, each with the rows of a backend that it is made of:
// for those who document it, and for a test that they exist.
func DCGMSources() map[string][]string {
	families := map[string][]string{}
	for _, r := range dcgmFamilies {
		for _, f := range r.sources {
			row := f.metric
			if f.label != "" {
				row += "{" + f.label + "}"
			}
			families[r.name] = append(families[r.name], row)
		}
	}
	return families
}

// renderDCGM writes a device as dcgm-exporter does: a GPU, or in the place of one that is
// partitioned its GPU instances, with what only the GPU has repeated on each.
func (d deviceRendering) renderDCGM(samples []device.Sample, gpu []device.Status, now time.Time) {
	rm := d.rendered
	c := &rm.dcgm
	if len(c.families) == 0 {
		return
	}
	clear(c.present)
	for _, s := range samples {
		if s.Device != d.status.ID {
			continue
		}
		for _, index := range c.familyIndexes[s.Metric] {
			if !c.present[index] {
				c.sums[index], c.present[index] = 0, true
			}
			c.sums[index] += s.Value * dcgmFamilies[index].scale
		}
	}
	if d.status.WholeGPU() {
		copy(c.gpuSums, c.sums)
		copy(c.gpuPresent, c.present)
		if d.status.MIGEnabled && slices.ContainsFunc(gpu, func(s device.Status) bool { return !s.WholeGPU() && !s.Gone }) {
			return
		}
	} else if !isFirstOfInstance(d.status, gpu) {
		return
	}
	owner := d.readingOwner
	if rm.options.StableSeries {
		owner = device.Owner{}
	}
	group := rm.group(dcgmLabels, d.status, owner)
	for index, f := range c.families {
		v, ok := c.sums[index], c.present[index]
		row := &dcgmFamilies[index]
		if !ok && row.has(dcgmWholeGPU) {
			v, ok = c.gpuSums[index], c.gpuPresent[index]
		}
		if ok && row.has(dcgmRate) {
			v, ok = c.rates.update(rateKey{d.status.ID, index}, owner, v, now)
		}
		if ok {
			group.set(seriesID{family: f}, v)
		}
	}
	group.set(seriesID{family: c.xid}, latestXid(gpu[0].Xids))
}

// isFirstOfInstance tells whether a slice is the one of its GPU instance that stands first.
// One that is gone has none.
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

// latestXid is the error that was reported last; 0 when none was.
func latestXid(xids []device.Xid) float64 {
	var last device.Xid
	for _, x := range xids {
		if x.Last.After(last.Last) {
			last = x
		}
	}
	return float64(last.Code)
}

// dcgmLabelsOf are the labels that dcgm-exporter has, ordered by name. Those of the holder
// are there also where they are empty (docs/adr/0002-label-contract.md).
func dcgmLabelsOf(s device.Status, owner device.Owner, hostname string) []device.Label {
	labels := append(ownerLabels(owner),
		device.Label{Name: "gpu", Value: strconv.Itoa(s.Index)},
		device.Label{Name: "UUID", Value: string(s.GPU)},
		device.Label{Name: "pci_bus_id", Value: longPCIAddress(s.PCI)},
		device.Label{Name: "device", Value: "nvidia" + strconv.Itoa(s.Minor)},
		device.Label{Name: "modelName", Value: s.Model},
		device.Label{Name: "Hostname", Value: hostname},
	)
	for _, label := range s.InfoLabels {
		if label.Name == "driver_version" {
			labels = append(labels, device.Label{Name: "DCGM_FI_DRIVER_VERSION", Value: label.Value})
		}
	}
	if !s.WholeGPU() {
		labels = append(labels, device.Label{Name: "GPU_I_PROFILE", Value: s.Profile}, device.Label{Name: "GPU_I_ID", Value: strconv.Itoa(s.GI)})
	}
	return labels
}

// longPCIAddress is an address as NVML writes it: eight digits of domain, in capitals.
func longPCIAddress(address string) string {
	domain, rest, ok := strings.Cut(address, ":")
	if !ok || len(domain) > 8 {
		return address
	}
	return strings.ToUpper(strings.Repeat("0", 8-len(domain)) + domain + ":" + rest)
}

// maxRateAge is how long a rate's last reading is kept.
const maxRateAge = time.Hour

// rateTracker turn counters into rates. They belong to the flight.
type rateTracker map[rateKey]rateWindow

type rateKey struct {
	device device.ID
	row    int
}

// rateWindow is a counter at the begin of a window, and its rate in the window before.
type rateWindow struct {
	owner device.Owner
	value float64
	begin time.Time
	rate  float64
	known bool
}

// minRateWindow is the shortest window of a rate. Until it has passed the rate of the last window
// stands, so a reader that comes more often shortens no window.
const minRateWindow = 10 * time.Second

// update returns the rise of a counter per second in the last window; false if no window has ended
// since the device got this owner, or if the counter restarted.
func (t rateTracker) update(key rateKey, owner device.Owner, value float64, now time.Time) (float64, bool) {
	last, ok := t[key]
	if ok && last.owner != owner { // a rate of the owner before is not this one's
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

// prune drops what is long gone.
func (t rateTracker) prune(now time.Time) {
	for key, last := range t {
		if now.Sub(last.begin) > maxRateAge {
			delete(t, key)
		}
	}
}
