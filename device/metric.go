package device

// Kind says how a metric behaves over time and whom its values belong to.
type Kind uint8

const (
	// Gauge is a value of now. It carries the device's holder.
	Gauge Kind = iota
	// HolderCounter only rises, and what it rises by is due to whoever holds the
	// device: it is accumulated per holder (docs/adr/0003-holder-counters.md).
	HolderCounter
	// FaultCounter only rises and belongs to the device itself: it carries no
	// holder.
	FaultCounter
)

// Metric is one row: a fact that can be read of a device. Rows of one family
// share Name, Help and Kind and differ in their Labels' values.
type Metric struct {
	Name   string // in base units, as Prometheus wants it: nvidia_gpu_power_watts
	Help   string
	Kind   Kind
	Labels []Label
}

// Sample is one value read, in the base unit that the row's name says.
type Sample struct {
	Device ID
	Metric int // index into Backend.Metrics
	Value  float64
}
