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

// MetricsSnapshot is the state of all devices in a response of /metrics.
type MetricsSnapshot struct {
	Span             // of the collection
	Scrapes   []Span // with this snapshot, each from request to response
	KubeletUp bool
	Devices   map[string]ShownDevice
}

// OwnerState is the allocation of a device according to a snapshot.
type OwnerState uint8

// The states of a device.
const (
	StateUnknown OwnerState = iota // no nvidia_gpu_allocated
	StateIdle
	StateUnnamed // allocated, with empty container labels
	StateNamed   // allocated, with the container's labels
)

func (h OwnerState) String() string {
	return [...]string{"unknown", "idle", "allocated without an owner", "allocated"}[h]
}

// ShownDevice is the state of a device in a snapshot.
type ShownDevice struct {
	State OwnerState
	Owner ContainerKey // if StateNamed
	// Owners are the containers in the labels of all series of the device, each once.
	Owners []ContainerKey
	// AttributedJoules is the energy counter of EnergyOwner; only valid if HasEnergy.
	AttributedJoules float64
	EnergyOwner      ContainerKey
	HasEnergy        bool
}

// isShared reports whether the device has several containers, and therefore no single owner.
func (s ShownDevice) isShared() bool { return s.State == StateUnnamed && len(s.Owners) > 1 }

// Metric families that Parse reads by name.
const (
	familyAllocated       = "nvidia_gpu_allocated"
	familyEnergy          = "nvidia_gpu_energy_joules_total"
	familyKubeletUp       = "podgauge_kubelet_up"
	familyCollectionBegin = "podgauge_flight_begin_timestamp_seconds"
	familyCollectionEnd   = "podgauge_flight_end_timestamp_seconds"
	// familyLastSeen also has containers of past allocations.
	familyLastSeen = "nvidia_gpu_allocation_last_seen_timestamp_seconds"
)

// Parse reads a response in the text format.
func Parse(text io.Reader) (MetricsSnapshot, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return MetricsSnapshot{}, fmt.Errorf("parse a scrape: %w", err)
	}
	s := MetricsSnapshot{Devices: map[string]ShownDevice{}}
	if families[familyCollectionBegin] == nil || families[familyCollectionEnd] == nil {
		return s, errors.New("parse a scrape: time of the collection is missing")
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

// deviceAndOwner returns the device of a series, empty for other series, and the container in its labels.
func deviceAndOwner(m *dto.Metric) (id string, owner ContainerKey) {
	labels := map[string]string{}
	for _, pair := range m.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	owner = ContainerKey{labels["namespace"], labels["pod"], labels["container"]}
	for _, name := range []string{"mig_uuid", "uuid", "device_id"} {
		if id := labels[name]; id != "" {
			id, _, _ = strings.Cut(id, "::") // replica number
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
