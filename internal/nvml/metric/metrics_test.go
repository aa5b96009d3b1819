package metric

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestRowsAreWellFormed checks the properties of rows that the exporter relies on.
func TestRowsAreWellFormed(t *testing.T) {
	names, err := nvmltest.FieldNames()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]Row{}
	last := ""
	for _, r := range slices.Concat(Rows, perLinkRows()) {
		other, known := seen[r.name]
		if known && last != r.name {
			t.Errorf("rows of %s: not consecutive", r.name)
		}
		if known && (other.help != r.help || other.kind != r.kind) {
			t.Errorf("rows of %s: different help or kind", r.name)
		}
		isCounter := r.kind == device.OwnerCounter || r.kind == device.FaultCounter
		if strings.HasSuffix(r.name, "_total") != isCounter {
			t.Errorf("%s: wrong kind for the name", r.name)
		}
		if len(r.Sources) == 0 && r.ValueID == NoValue {
			t.Errorf("%s: no source", r.name)
		}
		if r.ValueID != NoValue && r.Bit == 0 && r.Conversion == (Conversion{}) {
			t.Errorf("%s: no unit", r.name)
		}
		if r.kind == device.OwnerCounter && r.pace() != device.PaceFast {
			t.Errorf("%s: owner counter is not read in each collection", r.name)
		}
		for _, s := range r.Sources {
			if names[int(s.ID)] == "" {
				t.Errorf("%s: field %d has no name", r.name, s.ID)
			}
		}
		if r.sourceText() == "" || r.help == "" || r.name == "" {
			t.Errorf("%+v: no documentation", r)
		}
		seen[r.name], last = r, r.name
	}
}

// TestRatioAboveOne checks that a ratio slightly above 1 counts as 1: counters and clocks are not exactly in sync.
func TestRatioAboveOne(t *testing.T) {
	for percent, want := range map[float64]float64{0: 0, 50: 0.5, 100: 1, 100.4: 1, 150: -1, -1: -1, math.NaN(): -1, math.Inf(1): -1} {
		got, ok := inCyclePercent.Convert(percent)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%v %%: got %v, %v, want %v", percent, got, ok, want)
		}
	}
}

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
		{"u32 beside undefined bits", nvml.VALUE_TYPE_UNSIGNED_INT, u64(0xABCDEF01_00000007), 7},
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
		{"unknown type", 42, u64(7), none},
	} {
		got, ok := DecodeField(uint32(c.typ), c.value, nvml.SUCCESS)
		if ok != (c.want != none) || ok && got != c.want {
			t.Errorf("%s: got %v, %v; want %v", c.name, got, ok, c.want)
		}
		if _, ok := DecodeField(uint32(c.typ), c.value, nvml.ERROR_UNKNOWN); ok {
			t.Errorf("%s: got a value with an error code", c.name)
		}
	}
}

// FuzzDecode decodes any value that a driver may return. The result is absent, or a number within the limits of each row.
func FuzzDecode(f *testing.F) {
	for typ := range uint32(8) {
		f.Add(typ, uint64(0), uint32(nvml.SUCCESS))
		f.Add(typ, uint64(math.MaxUint64), uint32(nvml.SUCCESS))
		f.Add(typ, math.Float64bits(math.NaN()), uint32(nvml.ERROR_NOT_SUPPORTED))
	}
	f.Fuzz(func(t *testing.T, typ uint32, bits uint64, ret uint32) {
		var value [8]byte
		binary.NativeEndian.PutUint64(value[:], bits)
		v, ok := DecodeField(typ, value, nvml.Return(ret))
		if !ok {
			return
		}
		if ret != uint32(nvml.SUCCESS) || math.IsNaN(v) || math.IsInf(v, 0) {
			t.Fatalf("type %d, %#x, code %d: got %v", typ, bits, ret, v)
		}
		for _, r := range Rows {
			for _, s := range r.Sources {
				u := s.Conversion
				if converted, ok := u.Convert(v); ok && (math.IsNaN(converted) || converted < u.min || converted > u.max*u.Multiplier) {
					t.Fatalf("type %d, %#x: %s: got %v", typ, bits, r.name, converted)
				}
			}
		}
	})
}
