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

// MetricsSnapshot is what an answer of /metrics says of who holds what.
type MetricsSnapshot struct {
	Span             // of its flight
	Scrapes   []Span // that returned it, each from request to response
	KubeletUp bool
	Devices   map[string]ShownDevice
}

// OwnerState is what a snapshot says of a device.
type OwnerState uint8

// The states of a device.
const (
	StateUnknown OwnerState = iota // nothing
	StateIdle
	StateUnnamed // somebody has it, and nobody is named
	StateNamed   // by its holder
)

func (h OwnerState) String() string {
	return [...]string{"unknown", "idle", "allocated without a name", "held"}[h]
}

// ShownDevice is what a snapshot says of one device.
type ShownDevice struct {
	State OwnerState
	Owner ContainerKey // when Named
	// Owners are all whom any series of the device has in its labels, each once.
	Owners []ContainerKey
	// AttributedJoules are what is booked on Booked, which is shown where Counted.
	AttributedJoules float64
	EnergyOwner      ContainerKey
	HasEnergy        bool
}

// isShared tells whether several are named, and none alone: so is a device shown that several
// containers hold.
func (s ShownDevice) isShared() bool { return s.State == StateUnnamed && len(s.Owners) > 1 }

// The families that are read by name.
const (
	familyAllocated       = "nvidia_gpu_allocated"
	familyEnergy          = "nvidia_gpu_energy_joules_total"
	familyKubeletUp       = "podgauge_kubelet_up"
	familyCollectionBegin = "podgauge_flight_begin_timestamp_seconds"
	familyCollectionEnd   = "podgauge_flight_end_timestamp_seconds"
	// familyLastSeen names those of the past, and says so.
	familyLastSeen = "nvidia_gpu_allocation_last_seen_timestamp_seconds"
)

// Parse reads an answer in the text format.
func Parse(text io.Reader) (MetricsSnapshot, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return MetricsSnapshot{}, fmt.Errorf("parse a scrape: %w", err)
	}
	s := MetricsSnapshot{Devices: map[string]ShownDevice{}}
	if families[familyCollectionBegin] == nil || families[familyCollectionEnd] == nil {
		return s, errors.New("parse a scrape: it does not say when its flight was")
	}
	s.From, s.To = unixTime(sampleValue(families[familyCollectionBegin].Metric[0])), unixTime(sampleValue(families[familyCollectionEnd].Metric[0]))
	s.KubeletUp = families[familyKubeletUp] != nil && sampleValue(families[familyKubeletUp].Metric[0]) == 1
	for name, family := range families {
		for _, m := range family.Metric {
			s.add(name, m)
		}
	}
	return s, nil
}

func (s *MetricsSnapshot) add(name string, m *dto.Metric) {
	id, owner := deviceAndOwner(m)
	if id == "" || name == familyLastSeen {
		return
	}
	d := s.Devices[id]
	if owner != (ContainerKey{}) && !slices.Contains(d.Owners, owner) {
		d.Owners = append(d.Owners, owner)
	}
	switch name {
	case familyAllocated:
		d.State, d.Owner = StateNamed, owner
		switch {
		case sampleValue(m) == 0:
			d.State = StateIdle
		case owner == (ContainerKey{}):
			d.State = StateUnnamed
		}
	case familyEnergy:
		d.AttributedJoules, d.EnergyOwner, d.HasEnergy = sampleValue(m), owner, true
	}
	s.Devices[id] = d
}

// deviceAndOwner are the device of a series, empty where it is of none, and the container in its
// labels.
func deviceAndOwner(m *dto.Metric) (id string, owner ContainerKey) {
	labels := map[string]string{}
	for _, pair := range m.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	owner = ContainerKey{labels["namespace"], labels["pod"], labels["container"]}
	for _, name := range []string{"mig_uuid", "uuid", "device_id"} {
		if id := labels[name]; id != "" {
			id, _, _ = strings.Cut(id, "::") // of a replica
			return id, owner
		}
	}
	return "", owner
}

func sampleValue(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	default:
		return m.Untyped.GetValue()
	}
}

func unixTime(seconds float64) time.Time {
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(fraction*1e9))
}
