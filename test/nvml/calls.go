package nvmltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// NoGPU stands where a GPU's index would, for calls that concern none.
const NoGPU = MaxGPUs

// CallCounts are the counts of each function's calls since the library was loaded.
type CallCounts struct {
	records  callRecords
	baseline callRecords // subtracted from the functions' counts; may be empty
}

// callRecords is the content of the file: an array of struct record of standin/counter.c. Tests read
// it thousands of times with the race detector on, so it is not decoded as a whole.
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

// count is 0 for a record that the file lacks.
func (r callRecords) count(i, gpu int) uint64 {
	if i >= r.len() {
		return 0
	}
	return binary.NativeEndian.Uint64(r[i*recordSize+nameSize+8*gpu:])
}

// The records before those of the functions.
const (
	inFlight = iota
	maxInFlight
	gpmSamples
	gaugeCount // how many these are
)

// ReadCalls reads the file that NVML_STANDIN_CALLS named when the library was
// loaded. It may be read while the program runs.
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

// Count is how often a function was called on a GPU, or on NoGPU. To ask for a
// function that NVML does not have is a mistake, and panics.
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

// GPUTotal is how many calls of any function there were on a GPU, or on NoGPU.
func (c CallCounts) GPUTotal(gpu int) uint64 {
	var sum uint64
	for i := gaugeCount; i < c.records.len(); i++ {
		sum += c.count(i, gpu)
	}
	return sum
}

// InFlight is how many calls are under way on a GPU, or on NoGPU.
func (c CallCounts) InFlight(gpu int) uint64 { return c.records.count(inFlight, gpu) }

// MaxInFlight is how many there ever were at the same time.
func (c CallCounts) MaxInFlight(gpu int) uint64 { return c.records.count(maxInFlight, gpu) }

// GPMSamples is how many are allocated now and were not freed.
func (c CallCounts) GPMSamples() uint64 { return c.records.count(gpmSamples, NoGPU) }

// Since leaves the calls that were made after the earlier count. What is and was
// in flight, and what is allocated, stays as it is.
func (c CallCounts) Since(earlier CallCounts) CallCounts {
	return CallCounts{c.records, earlier.records}
}
