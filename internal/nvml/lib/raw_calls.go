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
*/
import "C"

// go-nvml is too expensive for two functions (v0.13.4): process lists double a
// buffer call by call, and GetProcessUtilization calls twice and panics if a
// process appears in between (pkg/nvml/device.go:2017). Here the caller keeps
// the buffers. go-nvml opens the library with RTLD_GLOBAL, so dlsym finds the
// symbols, which must be present.

// Interceptor is a handle that intercepts the calls which are no methods of
// nvml.Device, as those of package capture do.
type Interceptor interface {
	// Intercept returns a function of the type of call, which may make the call.
	Intercept(symbol string, call any) any
}

// intercept returns the interceptor's function for a call.
func intercept[F any](i Interceptor, symbol string, call F) F { return i.Intercept(symbol, call).(F) }

// ListProcesses fills infos by a function of Session.ProcessLists. The count is
// that of all processes, even if infos is too short.
func ListProcesses(symbol string, d nvml.Device, infos []nvml.ProcessInfo, count *uint32) nvml.Return {
	if i, ok := d.(Interceptor); ok {
		return intercept(i, symbol, func(d nvml.Device, infos []nvml.ProcessInfo, count *uint32) nvml.Return {
			return ListProcesses(symbol, d, infos, count)
		})(d, infos, count)
	}
	*count = uint32(len(infos))
	return nvml.Return(C.list_processes(lookUpSymbol(symbol), pointerOf(d), (*C.uint)(unsafe.Pointer(count)),
		unsafe.Pointer(&infos[0])))
}

// UtilizationSymbol is the function of ProcessUtilization.
const UtilizationSymbol = "nvmlDeviceGetProcessUtilization"

// ProcessUtilization fills samples newer than since, in µs. The count is that
// of all samples.
func ProcessUtilization(
	d nvml.Device, samples []nvml.ProcessUtilizationSample, count *uint32, since uint64,
) nvml.Return {
	if i, ok := d.(Interceptor); ok {
		return intercept(i, UtilizationSymbol, ProcessUtilization)(d, samples, count, since)
	}
	*count = uint32(len(samples))
	return nvml.Return(C.process_utilization(lookUpSymbol(UtilizationSymbol), pointerOf(d),
		unsafe.Pointer(&samples[0]), (*C.uint)(unsafe.Pointer(count)), C.ulonglong(since)))
}

// FabricInfo reads a version of the fabric's state.
func FabricInfo[T any](
	d nvml.Device, version func(nvml.GpuFabricInfoHandler) (T, nvml.Return),
) (T, nvml.Return) {
	if i, ok := d.(Interceptor); ok {
		return intercept(i, "nvmlDeviceGet"+reflect.TypeFor[T]().Name(), func(d nvml.Device) (T, nvml.Return) {
			return FabricInfo(d, version)
		})(d)
	}
	return version(d.GetGpuFabricInfoV())
}

// GPMMetrics fills the metrics between two samples of a device or, unless it is
// negative, of a GPU instance.
func GPMMetrics(d nvml.Device, instance int, earlier, later nvml.GpmSample, metrics []nvml.GpmMetric) nvml.Return {
	if i, ok := d.(Interceptor); ok {
		return intercept(i, "nvmlGpmMetricsGet", GPMMetrics)(d, instance, earlier, later, metrics)
	}
	request := nvml.GpmMetricsGetType{NumMetrics: uint32(len(metrics)), Sample1: earlier, Sample2: later}
	copy(request.Metrics[:], metrics)
	ret := nvml.GpmMetricsGet(&request)
	copy(metrics, request.Metrics[:])
	return ret
}

func lookUpSymbol(symbol string) unsafe.Pointer {
	name := append([]byte(symbol), 0)
	return C.look_up((*C.char)(unsafe.Pointer(&name[0])))
}

// pointerOf returns the C pointer of a handle, the only field of go-nvml's
// unexported struct.
func pointerOf(handle nvml.Device) unsafe.Pointer {
	v := reflect.ValueOf(handle)
	if v.Kind() != reflect.Struct || v.NumField() != 1 || v.Field(0).Kind() != reflect.Pointer {
		return nil
	}
	return v.Field(0).UnsafePointer()
}
