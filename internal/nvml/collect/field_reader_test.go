package collect

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// FuzzChecks lets checks evaluate any value that a driver may put into a field.
func FuzzChecks(f *testing.F) {
	for typ := range uint32(8) {
		f.Add(typ, uint64(0))
		f.Add(typ, uint64(math.MaxUint64))
	}
	f.Fuzz(func(t *testing.T, typ uint32, bits uint64) {
		var value [8]byte
		binary.NativeEndian.PutUint64(value[:], bits)
		v, ok := metric.DecodeField(typ, value, nvml.SUCCESS)
		if !ok {
			return
		}
		for i := range healthChecks {
			c := &healthChecks[i]
			if c.fieldIndex == 0 {
				continue
			}
			bad := v != 0
			if c.fieldIndex == recoveryIndex {
				bad = v == math.Trunc(v) && v > 0 && v <= float64(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT)
			}
			if fault := c.evaluate(nil, c, v, time.Time{}); (fault == nil) == bad || fault != nil && (fault.Reason == "" || fault.Action == "") {
				t.Fatalf("%s: value %v: got fault %+v", c.Condition, v, fault)
			}
		}
	})
}

// TestFieldValuesAdded has a driver that adds to the values in the buffer, as reported in https://github.com/NVIDIA/go-nvml/issues/46.
// Readings and checks must not change.
func TestFieldValuesAdded(t *testing.T) {
	const (
		ecc    = `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`
		memory = `nvidia_gpu_temperature_celsius{sensor="memory"}`
		sent   = "nvidia_gpu_pcie_transmit_bytes_total"
	)
	s := newListedFixture(t, "add fields", "gpus 1", "gpu 0 field 3 10", "gpu 0 memory_temperature 40", "gpu 0 pcie_tx 5000", "gpu 0 energy 9000")
	for i := range 3 {
		s.ageSlow(0, time.Minute)
		if got := s.values(0); got[ecc] != 10 || got[memory] != 40 || got[sent] != 5000 {
			t.Errorf("reading %d: got %v errors, %v °C, %v bytes, want 10, 40, 5000", i, got[ecc], got[memory], got[sent])
		}
		if v, err := s.Check(s.id(0)); err != nil || v.EnergyCounter != 9000 {
			t.Errorf("check %d: got %+v, %v, want energy counter 9000", i, v, err)
		}
	}
}

// TestNoFields checks that an empty list makes no call: go-nvml would take the address of its first element.
func TestNoFields(t *testing.T) {
	var none fieldReader
	if ret := none.read(nil, time.Now()); ret != nvml.SUCCESS {
		t.Errorf("empty list: got %d, want SUCCESS", ret)
	}
	b := metric.NewFieldBatch(metric.FieldKey{ID: 83}, metric.FieldKey{ID: 83}, metric.FieldKey{ID: 82}, metric.FieldKey{ID: 82, Scope: metric.ScopeNVLink, N: 1}, metric.FieldKey{ID: 82, Scope: metric.ScopeNVLink, N: 7})
	f := newFieldReader(lib.Symbols{lib.FieldValuesSymbol: true}, b, func(k metric.FieldKey) bool { return k.N < 4 })
	if f.prepareRequests(time.Now()); len(f.requests) != 3 {
		t.Errorf("requests: got %v, want 3", f)
	}
}
