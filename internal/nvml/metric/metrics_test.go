package metric_test

import (
	"encoding/binary"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestRowsAreWellFormed checks the properties of rows that the exporter relies
// on.
func TestRowsAreWellFormed(t *testing.T) {
	names, err := nvmltest.FieldNames()
	require.NoError(t, err)
	seen := map[string]device.Metric{}
	last := ""
	for _, m := range metric.MetricsPerLink() {
		other, known := seen[m.Name]
		if known && last != m.Name {
			t.Errorf("rows of %s: not consecutive", m.Name)
		}
		if known && (other.Help != m.Help || other.Kind != m.Kind) {
			t.Errorf("rows of %s: different help or kind", m.Name)
		}
		isCounter := m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter
		if strings.HasSuffix(m.Name, "_total") != isCounter {
			t.Errorf("%s: wrong kind for the name", m.Name)
		}
		if m.Kind == device.OwnerCounter && m.ReadPace != device.PaceFast {
			t.Errorf("%s: owner counter is not read in each collection", m.Name)
		}
		for _, field := range regexp.MustCompile(`field (\d+)`).FindAllStringSubmatch(m.Source, -1) {
			if id, _ := strconv.Atoi(field[1]); names[id] == "" {
				t.Errorf("%s: %s has no name", m.Name, field[0])
			}
		}
		if m.Source == "" || m.Help == "" || m.Name == "" {
			t.Errorf("%+v: no source or documentation", m)
		}
		seen[m.Name], last = m, m.Name
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
		got, ok := metric.DecodeField(uint32(c.typ), c.value, nvml.SUCCESS)
		if ok != (c.want != none) || ok && got != c.want {
			t.Errorf("%s: got %v, %v; want %v", c.name, got, ok, c.want)
		}
		if _, ok := metric.DecodeField(uint32(c.typ), c.value, nvml.ERROR_UNKNOWN); ok {
			t.Errorf("%s: got a value with an error code", c.name)
		}
	}
}

// FuzzDecode decodes any value that a driver may return. The result is absent,
// or a finite number in each row.
func FuzzDecode(f *testing.F) {
	for typ := range uint32(8) {
		f.Add(typ, uint64(0), uint32(nvml.SUCCESS))
		f.Add(typ, uint64(math.MaxUint64), uint32(nvml.SUCCESS))
		f.Add(typ, math.Float64bits(math.NaN()), uint32(nvml.ERROR_NOT_SUPPORTED))
	}
	f.Fuzz(func(t *testing.T, typ uint32, bits uint64, ret uint32) {
		var value [8]byte
		binary.NativeEndian.PutUint64(value[:], bits)
		v, ok := metric.DecodeField(typ, value, nvml.Return(ret))
		if !ok {
			return
		}
		if ret != uint32(nvml.SUCCESS) || math.IsNaN(v) || math.IsInf(v, 0) {
			t.Fatalf("type %d, %#x, code %d: got %v", typ, bits, ret, v)
		}
		for _, r := range metric.Rows {
			for _, s := range r.Sources {
				if v, ok := s.Conversion.Convert(v); ok && (math.IsNaN(v) || math.IsInf(v, 0)) {
					t.Fatalf("type %d, %#x: field %d: got %v", typ, bits, s.ID, v)
				}
			}
		}
	})
}
