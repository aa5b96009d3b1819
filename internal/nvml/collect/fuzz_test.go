package collect_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/bubble"
)

// fakeDevice answers each field with a function. Any other call but that for
// the UUID panics.
type fakeDevice struct {
	nvml.Device
	ret    nvml.Return // of each call
	answer func(*nvml.FieldValue)
}

func (d *fakeDevice) GetUUID() (string, nvml.Return) { return "GPU-0", d.ret }

func (d *fakeDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	for i := range values {
		d.answer(&values[i])
	}
	return d.ret
}

// setNumber answers a field.
func setNumber(v *nvml.FieldValue, valueType nvml.ValueType, bits uint64) {
	v.NvmlReturn, v.ValueType = uint32(nvml.SUCCESS), uint32(valueType)
	binary.NativeEndian.PutUint64(v.Value[:], bits)
}

// newReader returns an initialized reader of a driver with fields only.
func newReader(d *fakeDevice, reads func(*device.Metric) bool) *collect.GPUReader {
	session := &lib.Session{Symbols: lib.Symbols{lib.FieldValuesSymbol: true}, Version: "580.95.05"}
	g := collect.NewGPUReader("GPU-0", d, session, metric.NewReadPlan(false, reads), (&collect.Histories{}).Of("GPU-0"))
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Initialize()
	return g
}

// FuzzChecks answers the fields of checks with any values, types and codes, and
// the calls with any code. A fault always has a value as its reason.
func FuzzChecks(f *testing.F) {
	for typ := range uint32(8) {
		f.Add(typ, uint64(0), uint32(nvml.SUCCESS), uint32(nvml.SUCCESS))
		f.Add(typ, uint64(math.MaxUint64), uint32(nvml.SUCCESS), uint32(nvml.SUCCESS))
		f.Add(typ, uint64(1), uint32(nvml.ERROR_UNKNOWN), uint32(nvml.SUCCESS))
		f.Add(typ, uint64(1), uint32(nvml.SUCCESS), uint32(nvml.ERROR_NOT_SUPPORTED))
	}
	f.Fuzz(func(t *testing.T, typ uint32, bits uint64, fieldRet, ret uint32) {
		g := newReader(&fakeDevice{ret: nvml.Return(ret), answer: func(v *nvml.FieldValue) {
			setNumber(v, nvml.ValueType(typ), bits)
			v.NvmlReturn = fieldRet
		}}, nil)
		for range 2 {
			_, err := g.Check()
			fault, found := errors.AsType[*device.Fault](err)
			if !found {
				continue
			}
			answered := fieldRet == uint32(nvml.SUCCESS) && ret == uint32(nvml.SUCCESS)
			resetRequired := fieldRet == uint32(nvml.ERROR_RESET_REQUIRED) || ret == uint32(nvml.ERROR_RESET_REQUIRED)
			if fault.Reason == "" || fault.Action == "" || !answered && !resetRequired || answered && bits == 0 {
				t.Fatalf("type %d, %#x, codes %d and %d: got fault %+v", typ, bits, fieldRet, ret, fault)
			}
		}
		_, _ = g.Read() // any result, but no panic
	})
}

// FuzzMonotonicCounter lets a counter of PCIe traffic wrap, restart, fail and
// change its type at random. The exported value never falls, and never rises by
// more than the link can carry.
func FuzzMonotonicCounter(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		bubble.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(a, b)) //nolint:gosec // not for secrets
			const family, wraps, pcieRate = "nvidia_gpu_pcie_transmit_bytes_total", 1 << 32, 256e9
			count, last := uint64(0), 0.0
			plausible := math.MaxFloat64 // at first any count
			d := &fakeDevice{}
			d.answer = func(v *nvml.FieldValue) {
				switch {
				case v.FieldId != nvml.FI_DEV_PCIE_COUNT_TX_BYTES || random.IntN(5) == 0:
					v.NvmlReturn = uint32(nvml.ERROR_UNKNOWN)
				case random.IntN(2) == 0:
					setNumber(v, nvml.VALUE_TYPE_UNSIGNED_INT, count%wraps)
				default:
					setNumber(v, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, count)
				}
			}
			g := newReader(d, func(m *device.Metric) bool { return m.Name == family })
			for range 40 {
				samples, _ := g.Read()
				for _, s := range samples {
					if s.Value < last || s.Value-last > plausible {
						t.Fatalf("got %v after %v, want at most %v more", s.Value, last, plausible)
					}
					last, plausible = s.Value, 0
				}
				seconds := 1 + random.Uint64N(5)
				time.Sleep(time.Duration(seconds) * time.Second)
				if random.IntN(8) == 0 {
					count = random.Uint64N(1 << 33) // restarted
					plausible += 1 << 33
				}
				count += random.Uint64N(1 << 31)
				plausible += float64(seconds+1)*pcieRate + 1<<33
			}
		})
	})
}
