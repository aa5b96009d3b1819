package nvmltest

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestEnumeration(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		version, ret := n.SystemGetDriverVersion()
		n.want(nvml.SUCCESS, ret)
		if version != "580.95.05" {
			n.Errorf("driver %q", version)
		}
		count, ret := n.DeviceGetCount()
		n.want(nvml.SUCCESS, ret)
		if count != 8 {
			n.Fatalf("%d GPUs, want 8", count)
		}
		for i := range count {
			checkIdentity(n, i)
		}
		_, ret = n.DeviceGetHandleByIndex(8)
		n.want(nvml.ERROR_INVALID_ARGUMENT, ret)
		_, ret = n.DeviceGetHandleByUUID("GPU-of-another-node")
		n.want(nvml.ERROR_NOT_FOUND, ret)
		_, ret = n.DeviceGetHandleByPciBusId("0000:99:00.0")
		n.want(nvml.ERROR_NOT_FOUND, ret)
	})
}

func checkIdentity(n *node, i int) {
	gpu := n.gpu(i)
	for want, get := range map[string]func() (string, nvml.Return){
		fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i): gpu.GetUUID,
		fmt.Sprintf("16500000%05d", i):                      gpu.GetSerial,
		"NVIDIA H100 80GB HBM3":                             gpu.GetName,
		"96.00.74.00.01":                                    gpu.GetVbiosVersion,
	} {
		got, ret := get()
		n.want(nvml.SUCCESS, ret)
		if got != want {
			n.Errorf("GPU %d says %q, want %q", i, got, want)
		}
	}
	for _, get := range []func() (int, nvml.Return){gpu.GetIndex, gpu.GetMinorNumber} {
		got, ret := get()
		n.want(nvml.SUCCESS, ret)
		if got != i {
			n.Errorf("GPU %d has index or minor %d", i, got)
		}
	}
	pci, ret := gpu.GetPciInfo()
	n.want(nvml.SUCCESS, ret)
	if pci.Bus != uint32(0x10+i) || pci.PciDeviceId != 0x233010DE {
		n.Errorf("GPU %d is at %+v", i, pci)
	}
	for _, address := range []string{fmt.Sprintf("0000:%02x:00.0", 0x10+i), fmt.Sprintf("00000000:%02X:00.0", 0x10+i)} {
		found, ret := n.DeviceGetHandleByPciBusId(address)
		n.want(nvml.SUCCESS, ret)
		if found != gpu {
			n.Errorf("%s is not GPU %d", address, i)
		}
	}
	uuid, _ := gpu.GetUUID()
	if found, ret := n.DeviceGetHandleByUUID(uuid); ret != nvml.SUCCESS || found != gpu {
		n.Errorf("%s is not GPU %d: %v", uuid, i, ret)
	}
}

func TestGPUsComeAndGo(t *testing.T) {
	onNode(t, func(n *node) {
		n.start("gpus 2", "gpu 1 uuid GPU-of-mine", "gpu * name A GPU with a long name")
		last := n.gpu(1)
		uuid, _ := last.GetUUID()
		name, _ := last.GetName()
		if uuid != "GPU-of-mine" || name != "A GPU with a long name" {
			n.Errorf("GPU 1 is %q, %q", uuid, name)
		}
		n.set("gpus 1")
		if count, _ := n.DeviceGetCount(); count != 1 {
			n.Errorf("%d GPUs, want 1", count)
		}
		_, ret := last.GetUUID()
		n.want(nvml.ERROR_INVALID_ARGUMENT, ret)
		n.set("gpus 16")
		_, ret = last.GetUUID()
		n.want(nvml.SUCCESS, ret)
		n.gpu(15)
	})
}

// reading is a value that a scenario gives and a function that tells it.
type reading struct {
	line string
	want uint64
	get  func(nvml.Device) (uint64, nvml.Return)
}

func as[T ~uint32 | ~uint64 | ~int32 | ~int](get func(nvml.Device) (T, nvml.Return)) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v, ret := get(d)
		return uint64(v), ret
	}
}

// of takes one number out of a struct that a function fills.
func of[T any](get func(nvml.Device) (T, nvml.Return), pick func(T) uint64) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v, ret := get(d)
		return pick(v), ret
	}
}

func clock(t nvml.ClockType, get func(nvml.Device, nvml.ClockType) (uint32, nvml.Return)) func(nvml.Device) (uint64, nvml.Return) {
	return as(func(d nvml.Device) (uint32, nvml.Return) { return get(d, t) })
}

func ecc(e nvml.MemoryErrorType, c nvml.EccCounterType) func(nvml.Device) (uint64, nvml.Return) {
	return as(func(d nvml.Device) (uint64, nvml.Return) { return d.GetTotalEccErrors(e, c) })
}

// field reads a field and demands that the driver says so in this type.
func field(id uint32, t nvml.ValueType) func(nvml.Device) (uint64, nvml.Return) {
	return func(d nvml.Device) (uint64, nvml.Return) {
		v := []nvml.FieldValue{{FieldId: id}}
		if ret := d.GetFieldValues(v); ret != nvml.SUCCESS {
			return 0, ret
		}
		ret := nvml.Return(v[0].NvmlReturn)
		if got := nvml.ValueType(v[0].ValueType); ret == nvml.SUCCESS && got != t {
			panic(fmt.Sprintf("field %d has type %d, want %d", id, got, t))
		}
		return decode(v[0]), ret
	}
}

// decode takes the number out of a field's value, which may have any type.
func decode(v nvml.FieldValue) uint64 {
	bits := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		return uint64(math.Float64frombits(bits))
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v.Value[:]))
	default:
		return bits
	}
}

const (
	f64 = nvml.VALUE_TYPE_DOUBLE
	u32 = nvml.VALUE_TYPE_UNSIGNED_INT
	u64 = nvml.VALUE_TYPE_UNSIGNED_LONG_LONG
	i32 = nvml.VALUE_TYPE_SIGNED_INT
)

var readings = []reading{
	{"minor 9", 9, as(nvml.Device.GetMinorNumber)},
	{"memory_used 5000", 5000, of(nvml.Device.GetMemoryInfo_v2, func(m nvml.Memory_v2) uint64 { return m.Used })},
	{"memory_reserved 700", 5700, of(nvml.Device.GetMemoryInfo, func(m nvml.Memory) uint64 { return m.Used })},
	{"memory_total 9000", 3300, of(nvml.Device.GetMemoryInfo_v2, func(m nvml.Memory_v2) uint64 { return m.Free })},
	{"utilization 77", 77, of(nvml.Device.GetUtilizationRates, func(u nvml.Utilization) uint64 { return uint64(u.Gpu) })},
	{"memory_utilization 66", 66, of(nvml.Device.GetUtilizationRates, func(u nvml.Utilization) uint64 { return uint64(u.Memory) })},
	{"temperature 55", 55, as(func(d nvml.Device) (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })},
	{"memory_temperature 88", 88, field(nvml.FI_DEV_MEMORY_TEMP, u32)},
	{"power 123456", 123456, as(nvml.Device.GetPowerUsage)},
	{"power 123457", 123457, field(nvml.FI_DEV_POWER_INSTANT, u32)},
	{"power_limit 600000", 600000, as(nvml.Device.GetEnforcedPowerLimit)},
	{"power_limit_min 1", 1, field(nvml.FI_DEV_POWER_MIN_LIMIT, u32)},
	{"power_limit_max 2", 2, field(nvml.FI_DEV_POWER_MAX_LIMIT, u32)},
	{"power_limit_default 3", 3, as(nvml.Device.GetPowerManagementDefaultLimit)},
	{"energy 12345678901234", 12345678901234, as(nvml.Device.GetTotalEnergyConsumption)},
	{"energy 12345678901235", 12345678901235, field(nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, u64)},
	{"graphics_clock 101", 101, clock(nvml.CLOCK_GRAPHICS, nvml.Device.GetClockInfo)},
	{"sm_clock 102", 102, clock(nvml.CLOCK_SM, nvml.Device.GetClockInfo)},
	{"mem_clock 103", 103, clock(nvml.CLOCK_MEM, nvml.Device.GetClockInfo)},
	{"video_clock 104", 104, clock(nvml.CLOCK_VIDEO, nvml.Device.GetClockInfo)},
	{"graphics_clock_max 105", 105, clock(nvml.CLOCK_GRAPHICS, nvml.Device.GetMaxClockInfo)},
	{"sm_clock_max 106", 106, clock(nvml.CLOCK_SM, nvml.Device.GetMaxClockInfo)},
	{"mem_clock_max 107", 107, clock(nvml.CLOCK_MEM, nvml.Device.GetMaxClockInfo)},
	{"video_clock_max 108", 108, clock(nvml.CLOCK_VIDEO, nvml.Device.GetMaxClockInfo)},
	{"pstate 8", 8, as(nvml.Device.GetPerformanceState)},
	{"throttle 0x44", 0x44, as(nvml.Device.GetCurrentClocksEventReasons)},
	{"throttle_supported 0xff", 0xff, as(nvml.Device.GetSupportedClocksEventReasons)},
	{"throttle_ns_sw_power 11", 11, field(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, u64)},
	{"throttle_ns_sync_boost 12", 12, field(nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, u64)},
	{"throttle_ns_sw_thermal 13", 13, field(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, u64)},
	{"throttle_ns_hw_thermal 14", 14, field(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, u64)},
	{"throttle_ns_hw_power_brake 15", 15, field(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, u64)},
	{"pcie_generation 4", 4, as(nvml.Device.GetCurrPcieLinkGeneration)},
	{"pcie_generation_max 6", 6, as(nvml.Device.GetMaxPcieLinkGeneration)},
	{"pcie_width 8", 8, as(nvml.Device.GetCurrPcieLinkWidth)},
	{"pcie_width_max 32", 32, as(nvml.Device.GetMaxPcieLinkWidth)},
	{"pcie_replay 21", 21, as(nvml.Device.GetPcieReplayCounter)},
	{"pcie_replay 22", 22, field(nvml.FI_DEV_PCIE_REPLAY_COUNTER, u32)},
	{"ecc_mode 0", 0, field(nvml.FI_DEV_ECC_CURRENT, u32)},
	{"ecc_volatile_corrected 31", 31, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)},
	{"ecc_volatile_uncorrected 32", 32, ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)},
	{"ecc_aggregate_corrected 33", 33, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC)},
	{"ecc_aggregate_uncorrected 34", 34, field(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, u64)},
	{"remapped_corrected 41", 41, field(nvml.FI_DEV_REMAPPED_COR, u32)},
	{"remapped_uncorrected 42", 42, field(nvml.FI_DEV_REMAPPED_UNC, u32)},
	{"remapped_pending 1", 1, field(nvml.FI_DEV_REMAPPED_PENDING, u32)},
	{"remapped_failure 1", 1, field(nvml.FI_DEV_REMAPPED_FAILURE, u32)},
	{"recovery_action 2", 2, field(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, u32)},
	{"persistence_mode 0", 0, as(nvml.Device.GetPersistenceMode)},
	{"compute_mode 3", 3, as(nvml.Device.GetComputeMode)},
	{"event_types 0x8", 0x8, as(nvml.Device.GetSupportedEventTypes)},
	{"mig_mode 1", 1, as(func(d nvml.Device) (int, nvml.Return) { mode, _, ret := d.GetMigMode(); return mode, ret })},
	{"numa 1", 1, as(nvml.Device.GetNumaNodeId)},
	{"field 164 26562", 26562, field(nvml.FI_DEV_NVLINK_GET_SPEED, u64)},
	{"field 193 -5 i32", 0xFFFFFFFB, field(nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, i32)},
	{"field 4 77", 77, field(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, u64)}, // known otherwise
	{"field 9998 99 f64", 99, field(9998, f64)},
	{"field 9999 0xFFFFFFFFFFFFFFFF", 1<<64 - 1, field(9999, u64)},
}

// TestValues sets each value and reads it, and then takes it away.
func TestValues(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		gpu, other := n.gpu(3), n.gpu(4)
		for _, r := range readings {
			before, beforeRet := r.get(other)
			n.set("gpu 3 " + r.line)
			got, ret := r.get(gpu)
			if ret != nvml.SUCCESS || got != r.want {
				n.Errorf("%s: got %d (%v)", r.line, got, ret)
			}
			after, afterRet := r.get(other)
			if rises := strings.HasPrefix(r.line, "energy"); !rises && (before != after || beforeRet != afterRet) {
				n.Errorf("%s on GPU 3 changed GPU 4 from %d to %d", r.line, before, after)
			}
		}
		for _, r := range readings {
			n.set(strings.Join(subject("gpu 3 "+r.line), " ") + " none")
			_, ret := r.get(gpu)
			n.want(nvml.ERROR_NOT_SUPPORTED, ret)
		}
	})
}

// TestEveryValueIsRead holds TestValues to the list of what there is.
func TestEveryValueIsRead(t *testing.T) {
	read := map[string]bool{}
	for _, r := range readings {
		read[subject("gpu 0 " + r.line)[2]] = true
	}
	delete(read, "field")
	if want, got := scenarioKeys(t, "GPU_VALUES"), slices.Sorted(maps.Keys(read)); !slices.Equal(want, got) {
		t.Errorf("the values are\n%v\nand those read are\n%v", want, got)
	}
}

func TestFieldScopes(t *testing.T) {
	onNode(t, func(n *node) {
		n.start("gpu 0 field 138/2 222", "gpu 0 field 138/4294967295 999")
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 2},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 1<<32 - 1},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 3},
			{FieldId: nvml.FI_DEV_POWER_INSTANT, ScopeId: nvml.POWER_SCOPE_GPU},
			{FieldId: nvml.FI_DEV_POWER_INSTANT, ScopeId: nvml.POWER_SCOPE_MODULE},
		}
		before := time.Now()
		n.want(nvml.SUCCESS, n.gpu(0).GetFieldValues(values))
		for i, want := range []struct {
			ret   nvml.Return
			value uint64
		}{
			{nvml.SUCCESS, 222},
			{nvml.SUCCESS, 999},
			{nvml.ERROR_NOT_SUPPORTED, 0},
			{nvml.SUCCESS, 70000},
			{nvml.ERROR_NOT_SUPPORTED, 0},
		} {
			v := values[i]
			n.want(want.ret, nvml.Return(v.NvmlReturn))
			if want.ret == nvml.SUCCESS && decode(v) != want.value {
				n.Errorf("entry %d is %d, want %d", i, decode(v), want.value)
			}
			if age := time.UnixMicro(v.Timestamp).Sub(before); age < -time.Second || age > patience {
				n.Errorf("entry %d was taken %v after the call began", i, age)
			}
		}
	})
}

func TestValuesOverTime(t *testing.T) {
	onNode(t, func(n *node) {
		begin := time.Now().Add(-time.Hour)
		n.start(fmt.Sprintf("epoch %.6f", float64(begin.UnixNano())/1e9),
			"gpu 0 energy 5000+1000/s", "gpu 0 temperature 40~60/0.02s")
		gpu := n.gpu(0)
		since := func(t time.Time) uint64 { return 5000 + uint64(t.Sub(begin).Milliseconds()) }
		seen := map[uint32]bool{}
		var last uint64
		n.eventually("the temperature swings", func() bool {
			before := time.Now()
			energy, ret := gpu.GetTotalEnergyConsumption()
			n.want(nvml.SUCCESS, ret)
			// The stand-in's clock is read once and carried on, so it may be off a little.
			const slack = 100
			if energy < last || energy < since(before)-slack || energy > since(time.Now())+slack {
				n.Fatalf("energy is %d after %d, want about %d", energy, last, since(before))
			}
			last = energy
			celsius, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
			n.want(nvml.SUCCESS, ret)
			if celsius < 40 || celsius > 60 {
				n.Fatalf("temperature %d is not between 40 and 60", celsius)
			}
			seen[celsius] = true
			return len(seen) > 10
		})
	})
}

func TestProcesses(t *testing.T) {
	onNode(t, func(n *node) {
		n.start("gpu 2 process 100 4096", "gpu 2 process 200 8192 gi 3 ci 1", "gpu 2 process 300 1", "gpu 1 process 400 1")
		processes, ret := n.gpu(2).GetComputeRunningProcesses()
		n.want(nvml.SUCCESS, ret)
		const none = 0xFFFFFFFF
		want := []nvml.ProcessInfo{
			{Pid: 100, UsedGpuMemory: 4096, GpuInstanceId: none, ComputeInstanceId: none},
			{Pid: 200, UsedGpuMemory: 8192, GpuInstanceId: 3, ComputeInstanceId: 1},
			{Pid: 300, UsedGpuMemory: 1, GpuInstanceId: none, ComputeInstanceId: none},
		}
		if !slices.Equal(processes, want) {
			n.Errorf("got %+v, want %+v", processes, want)
		}
		processes, ret = n.gpu(0).GetComputeRunningProcesses()
		n.want(nvml.SUCCESS, ret)
		if len(processes) != 0 {
			n.Errorf("an idle GPU has %+v", processes)
		}
	})
}
