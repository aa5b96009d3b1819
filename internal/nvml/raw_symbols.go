package nvml

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

import (
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A few functions are called here and not by go-nvml, which spends too much on them:
// its GpmMetricsGet copies 19 KB twice for each slice and flight, its lists of processes
// ask once more for each doubling of a buffer, and its GetProcessUtilization asks
// twice, and panics when a process appears in between (go-nvml v0.13.4,
// pkg/nvml/device.go:2017). The buffers here stay from flight to flight.
//
// The library was opened by go-nvml for all to see (RTLD_GLOBAL), so its symbols are
// found by name. One that is absent is nil, and is not called.

// rawSymbols are functions of the library that was loaded. It is never written.
type rawSymbols struct {
	processLists [3]unsafe.Pointer // by kind of process
	utilization  unsafe.Pointer
	gpmMetrics   unsafe.Pointer
}

// processListSymbols are the kinds of process, each with the functions that list them: the
// newer one says more. What is older than both knows no slices.
var processListSymbols = [3][2]string{
	{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"},
	{"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"},
}

func findRawSymbols() rawSymbols {
	var d rawSymbols
	for i, symbols := range processListSymbols {
		for _, symbol := range symbols {
			if d.processLists[i] == nil {
				d.processLists[i] = lookupSymbol(symbol)
			}
		}
	}
	d.utilization = lookupSymbol("nvmlDeviceGetProcessUtilization")
	d.gpmMetrics = lookupSymbol("nvmlGpmMetricsGet")
	return d
}

func lookupSymbol(symbol string) unsafe.Pointer {
	name := append([]byte(symbol), 0)
	return C.look_up((*C.char)(unsafe.Pointer(&name[0])))
}

// pointerOf is what C knows as a handle. go-nvml keeps it in a struct of one field, which
// it does not export; its own functions get it in the same way.
func pointerOf(handle any) unsafe.Pointer {
	v := reflect.ValueOf(handle)
	if v.Kind() != reflect.Struct || v.NumField() != 1 || v.Field(0).Kind() != reflect.Pointer {
		return nil
	}
	return v.Field(0).UnsafePointer()
}

// callProcessList fills infos, and says in count how many there are, also where they do not fit.
func callProcessList(f, device unsafe.Pointer, infos []nvml.ProcessInfo, count *uint32) nvml.Return {
	*count = uint32(len(infos))
	return nvml.Return(C.list_processes(f, device, (*C.uint)(unsafe.Pointer(count)), unsafe.Pointer(&infos[0])))
}

// callProcessUtilization fills samples with what is newer than since, in µs. The same goes for count.
func callProcessUtilization(f, device unsafe.Pointer, samples []nvml.ProcessUtilizationSample, count *uint32, since uint64) nvml.Return {
	*count = uint32(len(samples))
	return nvml.Return(C.process_utilization(f, device, unsafe.Pointer(&samples[0]), (*C.uint)(unsafe.Pointer(count)), C.ulonglong(since)))
}

// gpmRequest is nvml.h's nvmlGpmMetricsGet_t. It has room for as many metrics as the oldest
// driver's header gives it, which no driver may look beyond, since the version that
// follows the struct has never changed.
type gpmRequest struct {
	version, count uint32
	earlier, later uintptr // samples
	metrics        [98]gpmMetric
}

type gpmMetric struct {
	id, ret uint32
	value   float64
	info    [3]uintptr // texts of the library
}

func callGPMMetrics(f unsafe.Pointer, request *gpmRequest) nvml.Return {
	return nvml.Return(C.gpm_metrics(f, unsafe.Pointer(request)))
}
