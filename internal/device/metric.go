package device

import "strings"

// Kind is the behavior of a metric over time and between owners.
type Kind uint8

const (
	// Gauge is a current value. It carries the device's owner.
	Gauge Kind = iota
	// OwnerCounter only rises, and is accumulated per owner of the device
	// (docs/contributing/adr/0003-owner-counters.md).
	OwnerCounter
	// FaultCounter only rises and belongs to the device: it carries no owner.
	FaultCounter
	// StateGauge is a current value that the owner does not cause: a limit, a mode, remapped rows. It carries no owner.
	StateGauge
)

// Metric is one row: a fact about a device. Rows of one family share Name, Help and Kind, and differ in label values.
type Metric struct {
	Name   string // with the base unit: nvidia_gpu_power_watts
	Help   string
	Kind   Kind
	Labels []Label
	// Enum marks the states of an enumeration: 1 if the state holds, otherwise 0.
	Enum bool
	// Set is the smallest set with the row. States of an enumeration are exported
	// while they are 1, or always if AlwaysInSet is set.
	Set         MetricSet
	AlwaysInSet bool
	// Source lists the functions and field ids of the vendor's library, for docs/reference/metrics.md.
	Source string
	// Hardware names the devices with this metric; empty: all.
	Hardware string
	ReadPace ReadPace
}

// MetricSet is a set of metric families (--metrics.set), which is part of the
// sets before.
type MetricSet uint8

// The sets.
const (
	SetFull MetricSet = iota
	SetDefault
	SetMinimal
	SetNone
)

// RowName returns the name of the row, with the value of its label in braces.
func (m *Metric) RowName() string {
	if len(m.Labels) == 0 {
		return m.Name
	}
	return m.Name + "{" + m.Labels[0].Value + "}"
}

// Selector returns the row's series in PromQL: nvidia_gpu_clock_hertz{clock="sm"}.
func (m *Metric) Selector() string {
	labels := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		labels[i] = l.Name + `="` + l.Value + `"`
	}
	if len(labels) == 0 {
		return m.Name
	}
	return m.Name + "{" + strings.Join(labels, ",") + "}"
}

// ReadPace is the maximum frequency of reading a row.
type ReadPace uint8

// The paces.
const (
	PaceFast   ReadPace = iota // with every collection
	PaceSlow                   // every half minute
	PaceStatic                 // when the device is first listed, and after a start of the driver
)

// Sample is one value, in the base unit of the row's name.
type Sample struct {
	Device ID
	Metric int // index into Backend.Metrics
	Value  float64
}

// ProcessUsage is a process's usage of a device. Unknown values are negative, never 0.
type ProcessUsage struct {
	Device ID
	PID    uint32 // in the node's pid namespace
	// MemoryBytes is the process's device memory, in bytes.
	MemoryBytes float64
	// Shares of the device's time since the previous reading, 0 to 1.
	SM, MemoryController, Encoder, Decoder float64
}
