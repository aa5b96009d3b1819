package churn

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Snapshot is what an answer of /metrics says of who holds what.
type Snapshot struct {
	Span             // of its flight
	Scrapes   []Span // that returned it, each from request to response
	KubeletUp bool
	Devices   map[string]Shown
}

// Hold is what a snapshot says of a device.
type Hold uint8

// The states of a device.
const (
	Unknown Hold = iota // nothing
	Idle
	Unnamed // somebody has it, and nobody is named
	Named   // by its holder
)

func (h Hold) String() string {
	return [...]string{"unknown", "idle", "allocated without a name", "held"}[h]
}

// Shown is what a snapshot says of one device.
type Shown struct {
	Hold   Hold
	Holder Owner // when Named
	// Owners are all whom any series of the device has in its labels, each once.
	Owners []Owner
	// Joules are what is booked on Booked, which is shown where Counted.
	Joules  float64
	Booked  Owner
	Counted bool
}

// shared tells whether several are named, and none alone: so is a device shown that several
// containers hold.
func (s Shown) shared() bool { return s.Hold == Unnamed && len(s.Owners) > 1 }

// The families that are read by name.
const (
	allocated = "nvidia_gpu_allocated"
	energy    = "nvidia_gpu_energy_joules_total"
	kubeletUp = "podgauge_kubelet_up"
	begin     = "podgauge_flight_begin_timestamp_seconds"
	end       = "podgauge_flight_end_timestamp_seconds"
	// history names those of the past, and says so.
	history = "nvidia_gpu_allocation_last_seen_timestamp_seconds"
)

// Parse reads an answer in the text format.
func Parse(text io.Reader) (Snapshot, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return Snapshot{}, fmt.Errorf("parse a scrape: %w", err)
	}
	s := Snapshot{Devices: map[string]Shown{}}
	if families[begin] == nil || families[end] == nil {
		return s, errors.New("parse a scrape: it does not say when its flight was")
	}
	s.From, s.To = instant(value(families[begin].Metric[0])), instant(value(families[end].Metric[0]))
	s.KubeletUp = families[kubeletUp] != nil && value(families[kubeletUp].Metric[0]) == 1
	for name, family := range families {
		for _, m := range family.Metric {
			s.add(name, m)
		}
	}
	return s, nil
}

func (s *Snapshot) add(name string, m *dto.Metric) {
	id, owner := whose(m)
	if id == "" || name == history {
		return
	}
	d := s.Devices[id]
	if owner != (Owner{}) && !slices.Contains(d.Owners, owner) {
		d.Owners = append(d.Owners, owner)
	}
	switch name {
	case allocated:
		d.Hold, d.Holder = Named, owner
		switch {
		case value(m) == 0:
			d.Hold = Idle
		case owner == (Owner{}):
			d.Hold = Unnamed
		}
	case energy:
		d.Joules, d.Booked, d.Counted = value(m), owner, true
	}
	s.Devices[id] = d
}

// whose are the device of a series, empty where it is of none, and the container in its
// labels.
func whose(m *dto.Metric) (id string, owner Owner) {
	labels := map[string]string{}
	for _, pair := range m.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	owner = Owner{labels["namespace"], labels["pod"], labels["container"]}
	for _, name := range []string{"mig_uuid", "uuid", "device_id"} {
		if id := labels[name]; id != "" {
			id, _, _ = strings.Cut(id, "::") // of a replica
			return id, owner
		}
	}
	return "", owner
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	default:
		return m.Untyped.GetValue()
	}
}

func instant(seconds float64) time.Time {
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(fraction*1e9))
}
