package nvml

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// fields are the values that a GPU is asked for in one call, which the driver
// answers each for itself.
type fields struct {
	keys []key
	// exists tells which keys the GPU could have at all: it has so many links.
	exists []bool
	// asked are those keys that were not dropped, and which they are. Both are used
	// again for each call.
	asked []nvml.FieldValue
	which []int32
	at    []int32   // where each key is in asked; -1: it is not
	drops time.Time // since when keys that exist are not asked for; zero: there are none
	// denied is how often in a row the GPU said that it does not have each key, as far as
	// that matters, and doubted whether it said so too seldom of one that was dropped.
	denied  []uint8
	doubted bool
}

// newFields asks for the keys of a batch; not at all where the library lacks the
// function.
func newFields(has symbols, b batch, exists func(key) bool) fields {
	f := fields{keys: b.keys, exists: make([]bool, len(b.keys)), at: make([]int32, len(b.keys)), denied: make([]uint8, len(b.keys))}
	for i, k := range f.keys {
		f.exists[i] = has[fieldValues] && exists(k)
	}
	f.askAll()
	return f
}

// askAll takes back what was dropped and why, and all values.
func (f *fields) askAll() {
	clear(f.denied)
	f.askDropped()
}

// askDropped takes back what was dropped, and all values.
func (f *fields) askDropped() {
	f.asked, f.which, f.drops, f.doubted = f.asked[:0], f.which[:0], time.Time{}, false
	for i, k := range f.keys {
		f.at[i] = -1
		if !f.exists[i] {
			continue
		}
		f.at[i] = int32(len(f.asked))
		f.asked = append(f.asked, unanswered(k))
		f.which = append(f.which, int32(i))
	}
}

// admit adds the keys that the GPU turns out to have, without a value.
func (f *fields) admit(exists func(key) bool) {
	for i, k := range f.keys {
		if f.exists[i] || !exists(k) {
			continue
		}
		f.exists[i], f.at[i] = true, int32(len(f.asked))
		f.asked = append(f.asked, unanswered(k))
		f.which = append(f.which, int32(i))
	}
}

// unanswered returns an entry for a call. It holds nothing of an earlier call: one driver
// was reported to add to the old value (https://github.com/NVIDIA/go-nvml/issues/46), and
// an entry that the driver leaves alone must not look answered.
func unanswered(k key) nvml.FieldValue {
	return nvml.FieldValue{FieldId: k.id, ScopeId: k.n, NvmlReturn: uint32(nvml.ERROR_UNKNOWN)}
}

// ask fetches all values. Where one of them says that the GPU or the library is
// gone, that is the answer. An id that the GPU turns out not to
// have is dropped, so that the call returns the sooner: but not on the word of a GPU
// that answers nothing else, nor for good, since health is judged by some of them.
func (f *fields) ask(handle nvml.Device, now time.Time) nvml.Return {
	if !f.drops.IsZero() && now.Sub(f.drops) >= f.dropFor() {
		f.askDropped()
	}
	if len(f.asked) == 0 { // go-nvml takes the address of the first
		return nvml.SUCCESS
	}
	for i, k := range f.which {
		f.asked[i] = unanswered(f.keys[k])
	}
	if ret := handle.GetFieldValues(f.asked); ret != nvml.SUCCESS {
		f.askAll()
		return ret
	}
	for i := range f.asked {
		if ret := nvml.Return(f.asked[i].NvmlReturn); isFinal(ret) {
			f.askAll()
			return ret
		}
	}
	if f.answered() {
		f.drop(now)
	} else {
		f.askAll()
	}
	return nvml.SUCCESS
}

// asksAny tells whether there is anything to ask.
func (f *fields) asksAny() bool { return len(f.asked) > 0 || !f.drops.IsZero() }

// answered tells whether the newest call gave any value.
func (f *fields) answered() bool {
	for i := range f.asked {
		if nvml.Return(f.asked[i].NvmlReturn) == nvml.SUCCESS {
			return true
		}
	}
	return false
}

// dropFor is how long what was dropped is not asked for.
func (f *fields) dropFor() time.Duration {
	if f.doubted {
		return doubtedFor
	}
	return askAgainAfter
}

// drop has what the GPU does not have not be asked for.
func (f *fields) drop(now time.Time) {
	kept := 0
	for i := range f.asked {
		k := f.which[i]
		ret := nvml.Return(f.asked[i].NvmlReturn)
		if notHere(ret) {
			f.at[k] = -1
			f.denied[k] = min(f.denied[k]+1, believedAfter)
			f.doubted = f.doubted || f.denied[k] < believedAfter
			continue
		}
		if ret == nvml.SUCCESS {
			f.denied[k] = 0
		}
		f.asked[kept], f.which[kept], f.at[k] = f.asked[i], k, int32(kept)
		kept++
	}
	if kept < len(f.asked) && f.drops.IsZero() {
		f.drops = now
	}
	f.asked, f.which = f.asked[:kept], f.which[:kept]
}

// lacks tells whether the GPU said that it does not have a key, or cannot have it.
func (f *fields) lacks(i int) bool { return f.at[i] < 0 }

// lacksForSure reports whether the GPU has said so of a key that it could have, often enough
// to be believed.
func (f *fields) lacksForSure(i int) bool {
	return f.exists[i] && f.lacks(i) && f.denied[i] >= believedAfter
}

// failed reports whether the newest call gave nothing for a key which the GPU has: what it
// gave before may be so still.
func (f *fields) failed(i int) bool {
	at := f.at[i]
	if at < 0 {
		return false
	}
	ret := nvml.Return(f.asked[at].NvmlReturn)
	return ret != nvml.SUCCESS && !notHere(ret)
}

// lacksAll tells whether that goes for all keys of a source.
func (f *fields) lacksAll(r ref) bool {
	for i := range r.n {
		if !f.lacks(r.at + i) {
			return false
		}
	}
	return true
}

// value is what the newest call gave for a key, if that is not negative.
func (f *fields) value(i int) (float64, bool) {
	v, ok := f.signed(i)
	return v, ok && v >= 0
}

// signed is what the newest call gave for a key.
func (f *fields) signed(i int) (float64, bool) {
	at := f.at[i]
	if at < 0 {
		return 0, false
	}
	v := &f.asked[at]
	return decode(v.ValueType, v.Value, nvml.Return(v.NvmlReturn))
}

// wraps is the value at which a counter begins again at 0, by the type in which the
// driver gives it; 0: never.
func (f *fields) wraps(i int) float64 {
	at := f.at[i]
	if at < 0 {
		return 0
	}
	switch nvml.ValueType(f.asked[at].ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return 1 << 16
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return 1 << 32
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return 1 << 64
	default:
		return 0
	}
}

// decode reads the union of NVML's C struct. Types that are not known, and values
// that say "none" by all bits set or that no quantity has, are no value.
func decode(valueType uint32, value [8]byte, ret nvml.Return) (float64, bool) {
	if ret != nvml.SUCCESS {
		return 0, false
	}
	bits := binary.NativeEndian.Uint64(value[:])
	low := binary.NativeEndian.Uint32(value[:])
	switch nvml.ValueType(valueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(bits)
		return f, !math.IsNaN(f) && !math.IsInf(f, 0)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(low), low != math.MaxUint32
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(low)), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		short := binary.NativeEndian.Uint16(value[:])
		return float64(short), short != math.MaxUint16
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG: // both 8 bytes where podgauge runs
		return float64(bits), bits != math.MaxUint64
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	default:
		return 0, false
	}
}
