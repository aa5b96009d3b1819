package lib

import (
	"cmp"
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
// symbols.

// RawSymbols are functions of the loaded library; nil: absent. It is never
// written.
type RawSymbols struct {
	ProcessLists [3]unsafe.Pointer // by kind of process
	Utilization  unsafe.Pointer
}

func findRawSymbols() RawSymbols {
	var d RawSymbols
	for i, symbol := range ProcessListSymbols {
		d.ProcessLists[i] = cmp.Or(lookupSymbol(symbol), lookupSymbol(OlderVersions[symbol][0]))
	}
	d.Utilization = lookupSymbol("nvmlDeviceGetProcessUtilization")
	return d
}

func lookupSymbol(symbol string) unsafe.Pointer {
	name := append([]byte(symbol), 0)
	return C.look_up((*C.char)(unsafe.Pointer(&name[0])))
}

// PointerOf returns the C pointer of a handle, the only field of go-nvml's
// unexported struct.
func PointerOf(handle any) unsafe.Pointer {
	v := reflect.ValueOf(handle)
	if v.Kind() != reflect.Struct || v.NumField() != 1 || v.Field(0).Kind() != reflect.Pointer {
		return nil
	}
	return v.Field(0).UnsafePointer()
}

// ListProcesses fills infos. The count is that of all processes, even if infos
// is too short.
func ListProcesses(f, device unsafe.Pointer, infos []nvml.ProcessInfo, count *uint32) nvml.Return {
	*count = uint32(len(infos))
	return nvml.Return(C.list_processes(f, device, (*C.uint)(unsafe.Pointer(count)), unsafe.Pointer(&infos[0])))
}

// ProcessUtilization fills samples newer than since, in µs. The count is that
// of all samples.
func ProcessUtilization(
	f, device unsafe.Pointer, samples []nvml.ProcessUtilizationSample, count *uint32, since uint64,
) nvml.Return {
	*count = uint32(len(samples))
	return nvml.Return(C.process_utilization(f, device, unsafe.Pointer(&samples[0]), (*C.uint)(unsafe.Pointer(count)),
		C.ulonglong(since)))
}
