package churn

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

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

func (s OwnerState) String() string {
	return [...]string{"unknown", "idle", "allocated without an owner", "allocated"}[s]
}

// ShownDevice is the state of a device in a snapshot.
type ShownDevice struct {
	State OwnerState
	Owner ContainerKey // if StateNamed
	// Owners are the containers in the labels of all series of the device, each
	// once.
	Owners []ContainerKey
	// AttributedJoules is the energy counter of EnergyOwner; only valid if
	// HasEnergy.
	AttributedJoules float64
	EnergyOwner      ContainerKey
	HasEnergy        bool
}

// isShared reports whether the device has several containers, and therefore no
// single owner.
func (s ShownDevice) isShared() bool { return s.State == StateUnnamed && len(s.Owners) > 1 }

// Metric families that Parse reads by name.
const (
	familyAllocated       = "nvidia_gpu_allocated"
	familyEnergy          = "nvidia_gpu_energy_joules_total"
	familyKubeletUp       = "podgauge_kubelet_up"
	familyCollectionBegin = "podgauge_collection_begin_timestamp_seconds"
	familyCollectionEnd   = "podgauge_collection_end_timestamp_seconds"
	// familyLastSeen also has containers of past allocations.
	familyLastSeen = "nvidia_gpu_allocation_last_seen_timestamp_seconds"
)

// Parse reads a response in the text format.
func Parse(text io.Reader) (MetricsSnapshot, error) {
	s := MetricsSnapshot{Devices: map[string]ShownDevice{}}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return s, fmt.Errorf("parse a scrape: %w", err)
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, slices.Collect(maps.Values(families))...)
	if err != nil {
		return s, fmt.Errorf("parse a scrape: %w", err)
	}
	for _, sample := range samples {
		s.add(sample)
	}
	if s.From.IsZero() || s.To.IsZero() {
		return s, errors.New("parse a scrape: time of the collection is missing")
	}
	return s, nil
}

func (s *MetricsSnapshot) add(sample *model.Sample) {
	name, value := sample.Metric[model.MetricNameLabel], float64(sample.Value)
	switch name {
	case familyCollectionBegin:
		s.From = unixTime(value)
	case familyCollectionEnd:
		s.To = unixTime(value)
	case familyKubeletUp:
		s.KubeletUp = value == 1
	}
	id, owner := deviceAndOwner(sample.Metric)
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
		case value == 0:
			d.State = StateIdle
		case owner == (ContainerKey{}):
			d.State = StateUnnamed
		}
	case familyEnergy:
		d.AttributedJoules, d.EnergyOwner, d.HasEnergy = value, owner, true
	}
	s.Devices[id] = d
}

// deviceAndOwner returns the device of a series, empty for other series, and
// the container in its labels.
func deviceAndOwner(m model.Metric) (id string, owner ContainerKey) {
	id, _, _ = strings.Cut(string(cmp.Or(m["mig_uuid"], m["uuid"], m["device_id"])), "::") // replica number
	return id, ContainerKey{string(m["namespace"]), string(m["pod"]), string(m["container"])}
}

func unixTime(seconds float64) time.Time { return time.UnixMicro(int64(math.Round(seconds * 1e6))) }
