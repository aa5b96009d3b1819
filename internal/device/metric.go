package device

// Kind says how a metric behaves over time and whom its values belong to.
type Kind uint8

const (
	// Gauge is a value of now. It carries the device's holder.
	Gauge Kind = iota
	// OwnerCounter only rises, and what it rises by is due to whoever holds the
	// device: it is accumulated per holder (docs/adr/0003-holder-counters.md).
	OwnerCounter
	// FaultCounter only rises and belongs to the device itself: it carries no
	// holder.
	FaultCounter
	// StateGauge is a value of now that whoever holds the device does not make: a limit, a
	// mode, how many rows of the memory are remapped. It carries no holder.
	StateGauge
)

// Metric is one row: a fact that can be read of a device. Rows of one family
// share Name, Help and Kind and differ in their Labels' values.
type Metric struct {
	Name   string // in base units, as Prometheus wants it: nvidia_gpu_power_watts
	Help   string
	Kind   Kind
	Labels []Label
	// Source is where the value comes from, for those who read docs/metrics.md: the
	// functions and field ids of the vendor's library.
	Source string
	// Hardware says which devices have it; empty: all.
	Hardware string
	ReadPace ReadPace
}

// ReadPace is how often a row is read at most.
type ReadPace uint8

// The paces.
const (
	PaceFast   ReadPace = iota // with every flight
	PaceSlow                   // every half minute, the most overdue first
	PaceStatic                 // when the device is listed for the first time, or the driver was started anew
)

// Sample is one value read, in the base unit that the row's name says.
type Sample struct {
	Device ID
	Metric int // index into Backend.Metrics
	Value  float64
}

// ProcessUsage is what one process uses of a device. What the driver does not tell is
// negative, and never 0.
type ProcessUsage struct {
	Device ID
	PID    uint32 // in the pid namespace of the node
	// MemoryBytes is the device memory that it holds, in bytes.
	MemoryBytes float64
	// Shares of the device's time since the reading before, 0 to 1.
	SM, MemoryController, Encoder, Decoder float64
}
