package nvmltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// NoGPU stands where a GPU's index would, for calls that concern none.
const NoGPU = MaxGPUs

// Calls are how often each function was called since the library was loaded.
type Calls struct {
	inFlight, mostInFlight perGPU
	gpmSamples             uint64
	functions              map[string]perGPU
}

type perGPU [MaxGPUs + 1]uint64

// record is struct record of standin/counter.c.
type record struct {
	Name   [64]byte
	PerGPU perGPU
}

// gauges is how many records stand before those of the functions.
const gauges = 3

// ReadCalls reads the file that NVML_STANDIN_CALLS named when the library was
// loaded. It may be read while the program runs.
func ReadCalls(path string) (Calls, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Calls{}, fmt.Errorf("read NVML calls: %w", err)
	}
	records := make([]record, len(content)/binary.Size(record{}))
	if err := binary.Read(bytes.NewReader(content), binary.NativeEndian, records); err != nil {
		return Calls{}, fmt.Errorf("read NVML calls: %w", err)
	}
	if len(records) < gauges {
		return Calls{}, fmt.Errorf("read NVML calls: %s has %d records", path, len(records))
	}
	c := Calls{
		inFlight: records[0].PerGPU, mostInFlight: records[1].PerGPU, gpmSamples: records[2].PerGPU[NoGPU],
		functions: map[string]perGPU{},
	}
	for _, r := range records[gauges:] {
		name, _, _ := bytes.Cut(r.Name[:], []byte{0})
		c.functions[string(name)] = r.PerGPU
	}
	return c, nil
}

// Of is how often a function was called on a GPU, or on NoGPU. To ask for a
// function that NVML does not have is a mistake, and panics.
func (c Calls) Of(function string, gpu int) uint64 {
	counts, ok := c.functions[function]
	if !ok {
		panic("nvmltest: NVML has no " + function)
	}
	return counts[gpu]
}

// PerGPU is how many calls of any function there were on a GPU, or on NoGPU.
func (c Calls) PerGPU(gpu int) uint64 {
	var sum uint64
	for _, counts := range c.functions {
		sum += counts[gpu]
	}
	return sum
}

// InFlight is how many calls are under way on a GPU, or on NoGPU.
func (c Calls) InFlight(gpu int) uint64 { return c.inFlight[gpu] }

// MostInFlight is how many there ever were at the same time.
func (c Calls) MostInFlight(gpu int) uint64 { return c.mostInFlight[gpu] }

// GPMSamples is how many are allocated now and were not freed.
func (c Calls) GPMSamples() uint64 { return c.gpmSamples }

// Since leaves the calls that were made after the earlier count. What is and was
// in flight, and what is allocated, stays as it is.
func (c Calls) Since(earlier Calls) Calls {
	since := Calls{c.inFlight, c.mostInFlight, c.gpmSamples, map[string]perGPU{}}
	for name, counts := range c.functions {
		for gpu, n := range earlier.functions[name] {
			counts[gpu] -= n
		}
		since.functions[name] = counts
	}
	return since
}
