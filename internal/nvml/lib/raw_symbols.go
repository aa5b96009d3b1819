package lib

import (
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

/*
#cgo linux LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>

static void *look_up(const char *symbol) { return dlsym(RTLD_DEFAULT, symbol); }

static int list_processes(void *f, void *device, unsigned int *count, void *infos)
{
	return ((int (*)(void *, unsigned int *, void *))f)(device, count, infos);
}

static int process_utilization(void *f, void *device, void *samples, unsigned int *count, unsigned long long since)
{
	return ((int (*)(void *, void *, unsigned int *, unsigned long long))f)(device, samples, count, since);
}

static int gpm_metrics(void *f, void *get) { return ((int (*)(void *))f)(get); }
*/
import "C"

// A few functions are called here and not by go-nvml, which spends too much on them:
// its GpmMetricsGet copies 19 KB twice for each slice and flight, its lists of processes
// ask once more for each doubling of a buffer, and its GetProcessUtilization asks
// twice, and panics when a process appears in between (go-nvml v0.13.4,
// pkg/nvml/device.go:2017). The buffers here stay from flight to flight.
//
// The library was opened by go-nvml for all to see (RTLD_GLOBAL), so its symbols are
// found by name. One that is absent is nil, and is not called.

// RawSymbols are functions of the library that was loaded. It is never written.
type RawSymbols struct {
	ProcessLists  [3]unsafe.Pointer // by kind of process
	Utilization   unsafe.Pointer
	GPMMetricsGet unsafe.Pointer
}

// ProcessListSymbols are the kinds of process, each with the functions that list them: the
// newer one says more. What is older than both knows no slices.
var ProcessListSymbols = [3][2]string{
	{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"},
	{"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"},
}

func findRawSymbols() RawSymbols {
	var d RawSymbols
	for i, symbols := range ProcessListSymbols {
		for _, symbol := range symbols {
			if d.ProcessLists[i] == nil {
				d.ProcessLists[i] = lookupSymbol(symbol)
			}
		}
	}
	d.Utilization = lookupSymbol("nvmlDeviceGetProcessUtilization")
	d.GPMMetricsGet = lookupSymbol("nvmlGpmMetricsGet")
	return d
}

func lookupSymbol(symbol string) unsafe.Pointer {
	name := append([]byte(symbol), 0)
	return C.look_up((*C.char)(unsafe.Pointer(&name[0])))
}

// PointerOf is what C knows as a handle. go-nvml keeps it in a struct of one field, which
// it does not export; its own functions get it in the same way.
func PointerOf(handle any) unsafe.Pointer {
	v := reflect.ValueOf(handle)
	if v.Kind() != reflect.Struct || v.NumField() != 1 || v.Field(0).Kind() != reflect.Pointer {
		return nil
	}
	return v.Field(0).UnsafePointer()
}

// ListProcesses fills infos, and says in count how many there are, also where they do not fit.
func ListProcesses(f, device unsafe.Pointer, infos []nvml.ProcessInfo, count *uint32) nvml.Return {
	*count = uint32(len(infos))
	return nvml.Return(C.list_processes(f, device, (*C.uint)(unsafe.Pointer(count)), unsafe.Pointer(&infos[0])))
}

// ProcessUtilization fills samples with what is newer than since, in µs. The same goes for count.
func ProcessUtilization(f, device unsafe.Pointer, samples []nvml.ProcessUtilizationSample, count *uint32, since uint64) nvml.Return {
	*count = uint32(len(samples))
	return nvml.Return(C.process_utilization(f, device, unsafe.Pointer(&samples[0]), (*C.uint)(unsafe.Pointer(count)), C.ulonglong(since)))
}

// GPMRequest is nvml.h's nvmlGpmMetricsGet_t. It has room for as many metrics as the oldest
// driver's header gives it, which no driver may look beyond, since the version that
// follows the struct has never changed.
type GPMRequest struct {
	Version, Count uint32
	Earlier, Later uintptr // samples
	Metrics        [98]GPMMetric
}

type GPMMetric struct {
	ID, Ret uint32
	Value   float64
	info    [3]uintptr // texts of the library
}

func GPMMetrics(f unsafe.Pointer, request *GPMRequest) nvml.Return {
	return nvml.Return(C.gpm_metrics(f, unsafe.Pointer(request)))
}
