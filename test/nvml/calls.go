package nvmltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// NoGPU stands where a GPU's index would, for calls that concern none.
const NoGPU = MaxGPUs

// Calls are the counts of each function's calls since the library was loaded.
type Calls struct {
	records records
	earlier records // subtracted from the functions' counts; may be empty
}

// records is the content of the file: an array of struct record of standin/counter.c. Tests read
// it thousands of times with the race detector on, so it is not decoded as a whole.
type records []byte

const (
	nameSize   = 64
	recordSize = nameSize + 8*(MaxGPUs+1)
)

func (r records) len() int { return len(r) / recordSize }

func (r records) name(i int) string {
	name, _, _ := bytes.Cut(r[i*recordSize:][:nameSize], []byte{0})
	return string(name)
}

// count is 0 for a record that the file lacks.
func (r records) count(i, gpu int) uint64 {
	if i >= r.len() {
		return 0
	}
	return binary.NativeEndian.Uint64(r[i*recordSize+nameSize+8*gpu:])
}

// The records before those of the functions.
const (
	inFlight = iota
	mostInFlight
	gpmSamples
	gauges // how many these are
)

// ReadCalls reads the file that NVML_STANDIN_CALLS named when the library was
// loaded. It may be read while the program runs.
func ReadCalls(path string) (Calls, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Calls{}, fmt.Errorf("read NVML calls: %w", err)
	}
	c := Calls{records: content}
	if c.records.len() < gauges || len(content)%recordSize != 0 {
		return Calls{}, fmt.Errorf("read NVML calls: %s has %d bytes", path, len(content))
	}
	return c, nil
}

// Of is how often a function was called on a GPU, or on NoGPU. To ask for a
// function that NVML does not have is a mistake, and panics.
func (c Calls) Of(function string, gpu int) uint64 {
	for i := gauges; i < c.records.len(); i++ {
		if c.records.name(i) == function {
			return c.of(i, gpu)
		}
	}
	panic("nvmltest: NVML has no " + function)
}

func (c Calls) of(i, gpu int) uint64 { return c.records.count(i, gpu) - c.earlier.count(i, gpu) }

// PerGPU is how many calls of any function there were on a GPU, or on NoGPU.
func (c Calls) PerGPU(gpu int) uint64 {
	var sum uint64
	for i := gauges; i < c.records.len(); i++ {
		sum += c.of(i, gpu)
	}
	return sum
}

// InFlight is how many calls are under way on a GPU, or on NoGPU.
func (c Calls) InFlight(gpu int) uint64 { return c.records.count(inFlight, gpu) }

// MostInFlight is how many there ever were at the same time.
func (c Calls) MostInFlight(gpu int) uint64 { return c.records.count(mostInFlight, gpu) }

// GPMSamples is how many are allocated now and were not freed.
func (c Calls) GPMSamples() uint64 { return c.records.count(gpmSamples, NoGPU) }

// Since leaves the calls that were made after the earlier count. What is and was
// in flight, and what is allocated, stays as it is.
func (c Calls) Since(earlier Calls) Calls { return Calls{c.records, earlier.records} }
