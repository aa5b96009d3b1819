package sim

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// NewNamedMachine returns a typical machine, or nil for an unknown name: "h100"
// with eight GPUs; "h200" with four: one partitioned; "a100" with four: two
// partitioned, a third with MIG mode on; "gb200" with four; "t4" with four;
// "mixed" with a GPU of each generation.
func NewNamedMachine(name string, metrics []device.Metric, clock func() time.Time) *Machine {
	switch name {
	case "h100":
		return NewMachine(metrics, 8, clock)
	case "h200":
		m := NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{H200}, 4)...)
		m.Partition(m.GPUs()[0], "1c.3g.71gb", "2c.3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb")
		return m
	case "a100":
		m := NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{A100}, 4)...)
		gpus := m.GPUs()
		m.Partition(gpus[0], slices.Repeat([]string{"1g.10gb"}, computeSlicesPerGPU)...)
		m.Partition(gpus[1], "1c.3g.40gb", "2c.3g.40gb", "3g.40gb")
		m.Partition(gpus[2])
		return m
	case "gb200":
		return NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{GB200}, 4)...)
	case "t4":
		return NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{T4}, 4)...)
	case "mixed":
		return NewMachineWithModels(metrics, clock, Models()...)
	}
	return nil
}
