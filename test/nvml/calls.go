package nvmltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// NoGPU replaces a GPU's index for calls without a GPU.
const NoGPU = MaxGPUs

// CallCounts has the number of calls of each function since the load of the
// library.
type CallCounts struct {
	records  callRecords
	baseline callRecords // subtracted from the functions' counts; may be empty
}

// callRecords is the content of the file, an array of struct record of
// standin/counter.c. Records are decoded on access, because tests read the file
// thousands of times with the race detector.
type callRecords []byte

const (
	nameSize   = 64
	recordSize = nameSize + 8*(MaxGPUs+1)
)

func (r callRecords) len() int { return len(r) / recordSize }

func (r callRecords) name(i int) string {
	name, _, _ := bytes.Cut(r[i*recordSize:][:nameSize], []byte{0})
	return string(name)
}

// count returns the value of a record, 0 for a missing record.
func (r callRecords) count(i, gpu int) uint64 {
	if i >= r.len() {
		return 0
	}
	return binary.NativeEndian.Uint64(r[i*recordSize+nameSize+8*gpu:])
}

// Records before the records of the functions.
const (
	inFlight = iota
	maxInFlight
	gpmSamples
	gaugeCount // number of gauges
)

// ReadCalls reads the file of NVML_STANDIN_CALLS, also while the program runs.
func ReadCalls(path string) (CallCounts, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return CallCounts{}, fmt.Errorf("read NVML calls: %w", err)
	}
	c := CallCounts{records: content}
	if c.records.len() < gaugeCount || len(content)%recordSize != 0 {
		return CallCounts{}, fmt.Errorf("read NVML calls: %s has %d bytes", path, len(content))
	}
	return c, nil
}

// Count returns the number of calls of a function on a GPU, or on NoGPU, and
// panics for an unknown function.
func (c CallCounts) Count(function string, gpu int) uint64 {
	for i := gaugeCount; i < c.records.len(); i++ {
		if c.records.name(i) == function {
			return c.count(i, gpu)
		}
	}
	panic("nvmltest: NVML has no " + function)
}

func (c CallCounts) count(i, gpu int) uint64 {
	return c.records.count(i, gpu) - c.baseline.count(i, gpu)
}

// GPUTotal returns the number of all calls on a GPU, or on NoGPU.
func (c CallCounts) GPUTotal(gpu int) uint64 {
	var sum uint64
	for i := gaugeCount; i < c.records.len(); i++ {
		sum += c.count(i, gpu)
	}
	return sum
}

// InFlight returns the number of running calls on a GPU, or on NoGPU.
func (c CallCounts) InFlight(gpu int) uint64 { return c.records.count(inFlight, gpu) }

// MaxInFlight returns the largest number of concurrent calls so far.
func (c CallCounts) MaxInFlight(gpu int) uint64 { return c.records.count(maxInFlight, gpu) }

// GPMSamples returns the number of allocated GPM samples.
func (c CallCounts) GPMSamples() uint64 { return c.records.count(gpmSamples, NoGPU) }

// Since returns the calls after the earlier count. Gauges such as InFlight and
// GPMSamples are not changed.
func (c CallCounts) Since(earlier CallCounts) CallCounts {
	return CallCounts{c.records, earlier.records}
}
