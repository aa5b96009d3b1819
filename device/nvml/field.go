package nvml

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// noField is the id of no field: NVML counts from 1.
const noField = 0

// askAgainAfter is how long a field that the GPU said not to have is not asked for.
const askAgainAfter = 5 * time.Minute

// fields are the values that a GPU is asked for in one call, which the driver
// answers each for itself.
type fields struct {
	ids []uint32
	// asked are those of ids that were not dropped. It is used again for each call.
	asked   []nvml.FieldValue
	dropped time.Time // since when asked is not all of ids; zero: it is
}

// newFields asks for the ids, for each once and in their order; not at all where
// the library lacks the function.
func newFields(has symbols, ids ...uint32) fields {
	var f fields
	if !has[fieldValues] {
		return f
	}
	for _, id := range ids {
		if id != noField && !slices.Contains(f.ids, id) {
			f.ids = append(f.ids, id)
		}
	}
	f.askAll()
	return f
}

// askAll takes back what was dropped, and all values.
func (f *fields) askAll() {
	f.asked, f.dropped = f.asked[:0], time.Time{}
	for _, id := range f.ids {
		f.asked = append(f.asked, nvml.FieldValue{FieldId: id, NvmlReturn: uint32(nvml.ERROR_UNKNOWN)})
	}
}

// ask fetches all values. Where one of them says that the GPU or the library is
// gone, that is the answer; and so it is where each id that there is was a wrong
// argument: then it is the handle that is wrong. An id that the GPU turns out not to
// have is dropped, so that the call returns the sooner: but not on the word of a GPU
// that answers nothing else, nor for good, since health is judged by some of them.
func (f *fields) ask(handle nvml.Device) nvml.Return {
	if len(f.ids) == 0 { // go-nvml takes the address of the first
		return nvml.SUCCESS
	}
	if !f.dropped.IsZero() && time.Since(f.dropped) >= askAgainAfter {
		f.askAll()
	}
	for i := range f.asked { // an entry that the driver leaves alone is not read as its last answer
		f.asked[i].NvmlReturn = uint32(nvml.ERROR_UNKNOWN)
	}
	if ret := handle.GetFieldValues(f.asked); ret != nvml.SUCCESS {
		f.askAll()
		return ret
	}
	wrong := 0
	for _, v := range f.asked {
		switch ret := nvml.Return(v.NvmlReturn); {
		case isFinal(ret):
			f.askAll()
			return ret
		case ret == nvml.ERROR_INVALID_ARGUMENT:
			wrong++
		}
	}
	switch {
	case f.answered():
		f.drop()
	case wrong == len(f.ids):
		return nvml.ERROR_INVALID_ARGUMENT
	default:
		f.askAll()
	}
	return nvml.SUCCESS
}

// answered tells whether the newest call gave any value.
func (f *fields) answered() bool {
	return slices.ContainsFunc(f.asked, func(v nvml.FieldValue) bool { return nvml.Return(v.NvmlReturn) == nvml.SUCCESS })
}

// drop has what the GPU does not have not be asked for.
func (f *fields) drop() {
	before := len(f.asked)
	f.asked = slices.DeleteFunc(f.asked, func(v nvml.FieldValue) bool { return notHere(nvml.Return(v.NvmlReturn)) })
	if len(f.asked) < before && f.dropped.IsZero() {
		f.dropped = time.Now()
	}
}

// value is what the newest call gave for an id.
func (f *fields) value(id uint32) (float64, bool) {
	for i := range f.asked {
		if v := &f.asked[i]; v.FieldId == id {
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
