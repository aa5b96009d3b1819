package nvml

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// noField is the id of no field: NVML counts from 1.
const noField = 0

// fields are the values that a GPU is asked for in one call, which the driver
// answers each for itself. The slice is used again for each call.
type fields []nvml.FieldValue

// newFields asks for the ids, for each once and in their order; not at all where
// the library lacks the function.
func newFields(has symbols, ids ...uint32) fields {
	var f fields
	if !has[fieldValues] {
		return nil
	}
	for _, id := range ids {
		if id != noField && !slices.ContainsFunc(f, func(v nvml.FieldValue) bool { return v.FieldId == id }) {
			f = append(f, nvml.FieldValue{FieldId: id})
		}
	}
	return f
}

// ask fetches all values. Where one of them says that the GPU or the library is
// gone, that is the answer; an id that the GPU turns out not to have is not asked
// for again.
func (f *fields) ask(handle nvml.Device) nvml.Return {
	if len(*f) == 0 { // go-nvml takes the address of the first
		return nvml.SUCCESS
	}
	for i := range *f { // an entry that the driver leaves alone is not read as its last answer
		(*f)[i].NvmlReturn = uint32(nvml.ERROR_UNKNOWN)
	}
	if ret := handle.GetFieldValues(*f); ret != nvml.SUCCESS {
		f.forget(ret)
		return ret
	}
	for _, v := range *f {
		if ret := nvml.Return(v.NvmlReturn); isFinal(ret) {
			f.forget(ret)
			return ret
		}
	}
	// The driver is asked less and less, and the call returns the sooner.
	*f = slices.DeleteFunc(*f, func(v nvml.FieldValue) bool { return notHere(nvml.Return(v.NvmlReturn)) })
	return nvml.SUCCESS
}

// forget has no value be read as one of now.
func (f *fields) forget(ret nvml.Return) {
	for i := range *f {
		(*f)[i].NvmlReturn = uint32(ret)
	}
}

// value is what the newest call gave for an id.
func (f fields) value(id uint32) (float64, bool) {
	for i := range f {
		if v := &f[i]; v.FieldId == id {
			return decode(v.ValueType, v.Value, nvml.Return(v.NvmlReturn))
		}
	}
	return 0, false
}

// decode reads the union of NVML's C struct. Types that are not known, and values
// that say "none" by all bits set or that no quantity has, are no value. All
// that is read counts something, so nothing is negative.
func decode(valueType uint32, value [8]byte, ret nvml.Return) (float64, bool) {
	if ret != nvml.SUCCESS {
		return 0, false
	}
	bits := binary.NativeEndian.Uint64(value[:])
	low := binary.NativeEndian.Uint32(value[:])
	switch nvml.ValueType(valueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(bits)
		return f, f >= 0 && !math.IsInf(f, 1) // NaN is not >= 0
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(low), low != math.MaxUint32
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(low)), int32(low) >= 0
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		short := binary.NativeEndian.Uint16(value[:])
		return float64(short), short != math.MaxUint16
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG: // both 8 bytes where podgauge runs
		return float64(bits), bits != math.MaxUint64
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), int64(bits) >= 0
	default:
		return 0, false
	}
}
