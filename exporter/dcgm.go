package exporter

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// dcgmRow is a family of dcgm-exporter's, and what it is made of: so dashboards, alerts
// and autoscalers go on working while people move from one to the other.
type dcgmRow struct {
	name, help string
	traits     trait
	// from are rows of a backend, by name and label's value; the family is their sum.
	from []from
	// times turns our unit into theirs.
	times float64
}

// trait is what sets a row apart.
type trait uint8

const (
	asCounter trait = 1 << iota
	// asRate has the family be what the sum rose by a second since the last flight.
	asRate
	// ofGPU is what no slice has of its own: each shows its GPU's.
	ofGPU
)

func (r *dcgmRow) is(t trait) bool { return r.traits&t != 0 }

type from struct{ row, label string }

const mebi = 1.0 / (1 << 20)

// dcgmRows are the families of dcgm-exporter's default-counters.csv that NVML can give,
// with that file's types and helps (https://github.com/NVIDIA/dcgm-exporter, etc/, 4.8).
// DCGM_FI_DEV_XID_ERRORS is not made of a row, and DCGM_FI_DEV_VGPU_LICENSE_STATUS is of
// virtual machines alone.
var dcgmRows = []dcgmRow{
	{"DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", ofGPU, []from{{"nvidia_gpu_clock_hertz", "sm"}}, 1e-6},
	{"DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", ofGPU, []from{{"nvidia_gpu_clock_hertz", "memory"}}, 1e-6},
	{"DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", ofGPU, []from{{"nvidia_gpu_temperature_celsius", "memory"}}, 1},
	{"DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", ofGPU, []from{{"nvidia_gpu_temperature_celsius", "gpu"}}, 1},
	{"DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", ofGPU, []from{{"nvidia_gpu_power_watts", ""}}, 1},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", asCounter | ofGPU, []from{{"nvidia_gpu_energy_joules_total", ""}}, 1000},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", asCounter | ofGPU, []from{{"nvidia_gpu_pcie_replays_total", ""}}, 1},
	{"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", 0, []from{{"nvidia_gpu_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", 0, []from{{"nvidia_gpu_memory_controller_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", 0, []from{{"nvidia_gpu_encoder_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", 0, []from{{"nvidia_gpu_decoder_utilization_ratio", ""}}, 100},
	{"DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", 0, []from{{"nvidia_gpu_memory_free_bytes", ""}}, mebi},
	{"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", 0, []from{{"nvidia_gpu_memory_used_bytes", ""}}, mebi},
	{"DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", 0, []from{{"nvidia_gpu_memory_reserved_bytes", ""}}, mebi},
	{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes.", asCounter | ofGPU, []from{{"nvidia_gpu_nvlink_transmit_bytes_total", ""}, {"nvidia_gpu_nvlink_receive_bytes_total", ""}}, 1.0 / 1024},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors", asCounter | ofGPU, []from{{"nvidia_gpu_remapped_rows", "uncorrectable"}}, 1},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors", asCounter | ofGPU, []from{{"nvidia_gpu_remapped_rows", "correctable"}}, 1},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", ofGPU, []from{{"nvidia_gpu_row_remap_failure", ""}}, 1},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", 0, []from{{"nvidia_gpu_graphics_engine_active_ratio", ""}}, 1},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", 0, []from{{"nvidia_gpu_pipe_active_ratio", "tensor"}}, 1},
	{"DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.", 0, []from{{"nvidia_gpu_dram_bandwidth_utilization_ratio", ""}}, 1},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.", asRate | ofGPU, []from{{"nvidia_gpu_pcie_transmit_bytes_total", ""}}, 1},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.", asRate | ofGPU, []from{{"nvidia_gpu_pcie_receive_bytes_total", ""}}, 1},
}

// dcgm are these families on a page; the zero one has none.
type dcgm struct {
	families []*family // as dcgmRows
	xid      *family
	// of are the rows of dcgmRows that a row of the backend is a part of.
	of [][]int
	// sums are what was read for the device that is being written, and has which of them
	// were; for a slice, what it has not is its GPU's.
	sums, parent   []float64
	has, parentHas []bool
	rates          rates
}

func (d *dcgm) make(metrics []device.Metric, add func(description) *family) {
	for _, r := range dcgmRows {
		d.families = append(d.families, add(description{name: r.name, help: r.help, counter: r.is(asCounter)}))
	}
	d.xid = add(gauge("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered."))
	d.of = make([][]int, len(metrics))
	for i, m := range metrics {
		for at, r := range dcgmRows {
			if slices.ContainsFunc(r.from, func(f from) bool { return f.is(m) }) {
				d.of[i] = append(d.of[i], at)
			}
		}
	}
	n := len(dcgmRows)
	d.sums, d.has, d.parent, d.parentHas = make([]float64, n), make([]bool, n), make([]float64, n), make([]bool, n)
}

// is tells whether a row is meant.
func (f from) is(m device.Metric) bool {
	if m.Name != f.row || (len(m.Labels) == 0) != (f.label == "") {
		return false
	}
	return len(m.Labels) == 0 || len(m.Labels) == 1 && m.Labels[0].Value == f.label
}

// DCGM are dcgm-exporter's families, each with the rows of a backend that it is made of:
// for those who document it, and for a test that they exist.
func DCGM() map[string][]string {
	families := map[string][]string{}
	for _, r := range dcgmRows {
		for _, f := range r.from {
			row := f.row
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
func (d rendering) renderDCGM(samples []device.Sample, gpu []device.Status, now time.Time) {
	p := d.page
	c := &p.dcgm
	if len(c.families) == 0 {
		return
	}
	clear(c.has)
	for _, s := range samples {
		if s.Device != d.status.ID {
			continue
		}
		for _, at := range c.of[s.Metric] {
			if !c.has[at] {
				c.sums[at], c.has[at] = 0, true
			}
			c.sums[at] += s.Value * dcgmRows[at].times
		}
	}
	if d.status.WholeGPU() {
		copy(c.parent, c.sums)
		copy(c.parentHas, c.has)
		if d.status.MIG && slices.ContainsFunc(gpu, func(s device.Status) bool { return !s.WholeGPU() && !s.Gone }) {
			return
		}
	} else if !firstOfInstance(d.status, gpu) {
		return
	}
	owner := d.readOwner
	if p.options.StableSeries {
		owner = device.Owner{}
	}
	on := p.labelled(dcgmLabels, d.status, owner)
	for at, f := range c.families {
		v, has := c.sums[at], c.has[at]
		row := &dcgmRows[at]
		if !has && row.is(ofGPU) {
			v, has = c.parent[at], c.parentHas[at]
		}
		if has && row.is(asRate) {
			v, has = c.rates.of(rateOf{d.status.ID, at}, owner, v, now)
		}
		if has {
			on.set(slot{family: f}, v)
		}
	}
	on.set(slot{family: c.xid}, lastXid(gpu[0].Xids))
}

// firstOfInstance tells whether a slice is the one of its GPU instance that stands first.
// One that is gone has none.
func firstOfInstance(d device.Status, gpu []device.Status) bool {
	for _, other := range gpu {
		if other.ID == d.ID {
			return !d.Gone
		}
		if shareInstance(d, other) {
			return false
		}
	}
	return true
}

// lastXid is the error that was reported last; 0 when none was.
func lastXid(xids []device.Xid) float64 {
	var last device.Xid
	for _, x := range xids {
		if x.Last.After(last.Last) {
			last = x
		}
	}
	return float64(last.Code)
}

// dcgmPairs are the labels that dcgm-exporter has, ordered by name. Those of the holder
// are there also where they are empty (docs/adr/0002-label-contract.md).
func dcgmPairs(s device.Status, owner device.Owner, hostname string) []device.Label {
	labels := append(ownerLabels(owner),
		device.Label{Name: "gpu", Value: strconv.Itoa(s.Index)},
		device.Label{Name: "UUID", Value: string(s.GPU)},
		device.Label{Name: "pci_bus_id", Value: longPCI(s.PCI)},
		device.Label{Name: "device", Value: "nvidia" + strconv.Itoa(s.Minor)},
		device.Label{Name: "modelName", Value: s.Model},
		device.Label{Name: "Hostname", Value: hostname},
	)
	for _, fact := range s.Facts {
		if fact.Name == "driver_version" {
			labels = append(labels, device.Label{Name: "DCGM_FI_DRIVER_VERSION", Value: fact.Value})
		}
	}
	if !s.WholeGPU() {
		labels = append(labels, device.Label{Name: "GPU_I_PROFILE", Value: s.Profile}, device.Label{Name: "GPU_I_ID", Value: strconv.Itoa(s.GI)})
	}
	return labels
}

// longPCI is an address as NVML writes it: eight digits of domain, in capitals.
func longPCI(address string) string {
	domain, rest, ok := strings.Cut(address, ":")
	if !ok || len(domain) > 8 {
		return address
	}
	return strings.ToUpper(strings.Repeat("0", 8-len(domain)) + domain + ":" + rest)
}

// forgetAfter is how long a rate's last reading is kept.
const forgetAfter = time.Hour

// rates turn counters into rates. They belong to the flight.
type rates map[rateOf]rated

type rateOf struct {
	device device.ID
	row    int
}

// rated is a counter at the begin of a window, and its rate in the window before.
type rated struct {
	owner device.Owner
	value float64
	at    time.Time
	rate  float64
	known bool
}

// shortest is the shortest window of a rate. Until it has passed the rate of the last window
// stands, so a reader that comes more often shortens no window.
const shortest = 10 * time.Second

// of returns the rise of a counter per second in the last window; false if no window has ended
// since the device got this owner, or if the counter restarted.
func (r rates) of(c rateOf, owner device.Owner, value float64, now time.Time) (float64, bool) {
	last, had := r[c]
	if had && last.owner != owner { // a rate of the owner before is not this one's
		last, had = rated{}, false
	}
	elapsed := now.Sub(last.at)
	if had && elapsed < shortest {
		return last.rate, last.known
	}
	rate := (value - last.value) / elapsed.Seconds()
	known := had && rate >= 0
	r[c] = rated{owner, value, now, rate, known}
	return rate, known
}

// forget drops what is long gone.
func (r rates) forget(now time.Time) {
	for c, last := range r {
		if now.Sub(last.at) > forgetAfter {
			delete(r, c)
		}
	}
}
