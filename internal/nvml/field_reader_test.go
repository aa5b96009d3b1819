package nvml

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

func TestDecode(t *testing.T) {
	u64 := func(v uint64) (b [8]byte) { binary.NativeEndian.PutUint64(b[:], v); return b }
	u32 := func(v uint32) (b [8]byte) { binary.NativeEndian.PutUint32(b[:], v); return b }
	u16 := func(v uint16) (b [8]byte) { binary.NativeEndian.PutUint16(b[:], v); return b }
	f64 := func(v float64) [8]byte { return u64(math.Float64bits(v)) }
	const none = -1234567
	for _, c := range []struct {
		name  string
		typ   nvml.ValueType
		value [8]byte
		want  float64
	}{
		{"double", nvml.VALUE_TYPE_DOUBLE, f64(1.5), 1.5},
		{"double below 0", nvml.VALUE_TYPE_DOUBLE, f64(-1.5), -1.5},
		{"NaN", nvml.VALUE_TYPE_DOUBLE, f64(math.NaN()), none},
		{"infinity", nvml.VALUE_TYPE_DOUBLE, f64(math.Inf(1)), none},
		{"u32", nvml.VALUE_TYPE_UNSIGNED_INT, u32(7), 7},
		{"u32 beside rubbish", nvml.VALUE_TYPE_UNSIGNED_INT, u64(0xABCDEF01_00000007), 7},
		{"u32 of ones", nvml.VALUE_TYPE_UNSIGNED_INT, u32(math.MaxUint32), none},
		{"i32", nvml.VALUE_TYPE_SIGNED_INT, u32(7), 7},
		{"i32 below 0", nvml.VALUE_TYPE_SIGNED_INT, u32(1 << 31), -1 << 31},
		{"u16", nvml.VALUE_TYPE_UNSIGNED_SHORT, u16(7), 7},
		{"u16 of ones", nvml.VALUE_TYPE_UNSIGNED_SHORT, u16(math.MaxUint16), none},
		{"unsigned long", nvml.VALUE_TYPE_UNSIGNED_LONG, u64(1 << 40), 1 << 40},
		{"u64", nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, u64(1 << 40), 1 << 40},
		{"u64 of ones", nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, u64(math.MaxUint64), none},
		{"i64", nvml.VALUE_TYPE_SIGNED_LONG_LONG, u64(7), 7},
		{"i64 below 0", nvml.VALUE_TYPE_SIGNED_LONG_LONG, u64(math.MaxUint64 - 5), -6},
		{"a type of the future", 42, u64(7), none},
	} {
		got, ok := decodeFieldValue(uint32(c.typ), c.value, nvml.SUCCESS)
		if ok != (c.want != none) || ok && got != c.want {
			t.Errorf("%s: got %v, %v; want %v", c.name, got, ok, c.want)
		}
		if _, ok := decodeFieldValue(uint32(c.typ), c.value, nvml.ERROR_UNKNOWN); ok {
			t.Errorf("%s: a value that failed is read", c.name)
		}
	}
}

// FuzzDecode holds whatever a driver may put into a field: it is no value, or a
// number that every row can show.
func FuzzDecode(f *testing.F) {
	for typ := range uint32(8) {
		f.Add(typ, uint64(0), uint32(nvml.SUCCESS))
		f.Add(typ, uint64(math.MaxUint64), uint32(nvml.SUCCESS))
		f.Add(typ, math.Float64bits(math.NaN()), uint32(nvml.ERROR_NOT_SUPPORTED))
	}
	f.Fuzz(func(t *testing.T, typ uint32, bits uint64, ret uint32) {
		var value [8]byte
		binary.NativeEndian.PutUint64(value[:], bits)
		v, ok := decodeFieldValue(typ, value, nvml.Return(ret))
		if !ok {
			return
		}
		if ret != uint32(nvml.SUCCESS) || math.IsNaN(v) || math.IsInf(v, 0) {
			t.Fatalf("type %d, %#x, code %d: read as %v", typ, bits, ret, v)
		}
		for _, r := range rows {
			for _, s := range r.sources {
				u := s.conversion
				if shown, ok := u.convert(v); ok && (math.IsNaN(shown) || shown < u.min || shown > u.max*u.multiplier) {
					t.Fatalf("type %d, %#x: %s shows %v", typ, bits, r.name, shown)
				}
			}
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
			if found := c.evaluate(nil, c, v, time.Time{}); (found == nil) == bad || found != nil && (found.Reason == "" || found.Action == "") {
				t.Fatalf("%s: %v means %+v", c.name, v, found)
			}
		}
	})
}

// TestFieldValuesAdded has a driver that adds to what the entries held before a call, as one
// was reported to (https://github.com/NVIDIA/go-nvml/issues/46): no reading and no check may
// change by that.
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
			t.Errorf("reading %d: %v errors, %v °C, %v bytes", i, got[ecc], got[memory], got[sent])
		}
		if v, err := s.Check(s.id(0)); err != nil || v.EnergyCounter != 9000 {
			t.Errorf("check %d: %+v, %v", i, v, err)
		}
	}
}

// TestNoFields asks for nothing: go-nvml would take the address of no element.
func TestNoFields(t *testing.T) {
	var none fieldReader
	if ret := none.read(nil, time.Now()); ret != nvml.SUCCESS {
		t.Errorf("got %d", ret)
	}
	b := newFieldBatch(fieldKey{id: 83}, fieldKey{id: 83}, fieldKey{id: 82}, fieldKey{82, scopeNVLink, 1}, fieldKey{82, scopeNVLink, 7})
	if f := newFieldReader(lib.Symbols{lib.FieldValuesSymbol: true}, b, func(k fieldKey) bool { return k.n < 4 }); len(f.requests) != 3 {
		t.Errorf("asks for %v", f)
	}
}
