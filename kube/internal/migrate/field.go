package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// kind is how a field's value comes about; 0: a current value.
type kind uint8

const (
	// ownerCounter is a count of the driver that podgauge counts for each owner from 0.
	ownerCounter kind = iota + 1
	// rate is a rate per second, for which podgauge has a counter.
	rate
	// ofDevice is a fault, limit or mode of the device, or a count of the driver, without owners in podgauge.
	ofDevice
)

// field is a field of DCGM as a family of dcgm-exporter, and its counterpart: scale × sum ÷ per.
type field struct {
	sum, per []family
	scale    float64
	kind     kind
	ownOnly  bool   // DCGM has the field only for a MIG device with an own value
	note     string // what differs
	reason   string // why there is no counterpart; empty: there is one
}

// family is a family of podgauge, with the rows that make up a field.
type family struct {
	name string
	rows []row
}

// row is the series of a family with these labels.
type row struct {
	matchers []*labels.Matcher
	weight   float64
}

// The families with owners, by their kind in docs/reference/metrics.md. Others are of kind device-gauge or
// device-counter.
var (
	ownerCounters = regexp.MustCompile(`_(energy_joules|(receive|transmit)_bytes|throttle_seconds)_total$`)
	ownerGauges   = regexp.MustCompile(
		`_(bytes|ratio|power_watts|temperature(_margin)?_celsius|clock_hertz|performance_state|throttle_active)$`)
)

// ofMIGDevices reports whether a row of a family is also read for MIG devices.
func ofMIGDevices(name string, r row) bool {
	if name == "nvidia_gpu_ecc_volatile_location_errors_total" {
		return slices.ContainsFunc(r.matchers, func(m *labels.Matcher) bool { return m.Value == "sram" }) &&
			slices.ContainsFunc(r.matchers, func(m *labels.Matcher) bool { return m.Value == "uncorrected" })
	}
	for _, prefix := range []string{"memory", "bar1_memory", "graphics_engine", "sm", "pipe", "dram"} {
		if strings.HasPrefix(name, "nvidia_gpu_"+prefix+"_") {
			return !strings.HasPrefix(name, "nvidia_gpu_memory_controller_")
		}
	}
	return false
}

const xidReason = `podgauge counts each code instead of keeping the latest: use ` +
	`time() - nvidia_gpu_xid_last_timestamp_seconds{xid="79"} < 300 or nvidia_gpu_xid_errors_total`

// fieldOf returns the field with a name of any generation of dcgm-exporter.
func fieldOf(name string) field {
	found, generation := dcgm.Find(name)
	switch {
	case found == nil:
		return field{reason: name + ": " + dcgm.ReasonFor(name)}
	case found.Xid:
		return field{reason: xidReason}
	case found.Missing != "":
		return field{reason: name + ": " + found.Missing}
	case found.InfoLabel != "":
		return field{reason: name + " is a text: podgauge has it as label " + found.InfoLabel + " of nvidia_gpu_info"}
	}
	f := field{
		sum: families(found.Sources), per: families(found.Per), scale: found.Names[generation].Scale,
		ownOnly: found.OwnOnly,
	}
	if found.Note != "" {
		f.note = name + ": " + found.Note
	}
	switch {
	case found.Rate:
		f.kind = rate
	case ownerCounters.MatchString(f.sum[0].name):
		f.kind = ownerCounter
	case !ownerGauges.MatchString(f.sum[0].name):
		f.kind = ofDevice
	}
	return f
}

// families groups sources by family.
func families(sources []dcgm.Source) (all []family) {
	for _, s := range sources {
		r := row{weight: s.Weight}
		for _, m := range selectorOf(s.Selector) {
			if m.Name != model.MetricNameLabel {
				r.matchers = append(r.matchers, m)
			}
		}
		if last := len(all) - 1; last >= 0 && all[last].name == s.Family() {
			all[last].rows = append(all[last].rows, r)
		} else {
			all = append(all, family{s.Family(), []row{r}})
		}
	}
	return all
}

func selectorOf(text string) []*labels.Matcher {
	matchers, err := promQL.ParseMetricSelector(text)
	if err != nil {
		panic(fmt.Sprintf("selector in the table of fields: %v", err))
	}
	return matchers
}

// labelNames returns the names of the row's own labels.
func (r row) labelNames() (names []string) {
	for _, m := range r.matchers {
		names = append(names, m.Name)
	}
	return names
}

// variant returns the labels that podgauge's series have and DCGM's lack: clock="sm".
func (f *field) variant() (all []string) {
	if !f.isSimple() {
		return nil
	}
	for _, m := range f.sum[0].rows[0].matchers {
		all = append(all, m.String())
	}
	return all
}

// isSimple reports whether the field is one series, so that each function of it is the same function of the series.
func (f *field) isSimple() bool { return len(f.per) == 0 && len(f.sum) == 1 && len(f.sum[0].rows) == 1 }
