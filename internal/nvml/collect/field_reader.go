package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// fieldReader are the values that a GPU is asked for in one call, which the driver
// answers each for itself.
type fieldReader struct {
	keys []metric.FieldKey
	// supported tells which keys the GPU could have at all: it has so many links.
	supported []bool
	// requests are those keys that were not dropped, and which they are. Both are used
	// again for each call.
	requests     []nvml.FieldValue
	keyIndex     []int32
	requestIndex []int32   // where each key is in asked; -1: it is not
	droppedSince time.Time // since when keys that exist are not asked for; zero: there are none
	// denialCounts is how often in a row the GPU said that it does not have each key, as far as
	// that matters, and doubted whether it said so too seldom of one that was dropped.
	denialCounts []uint8
	unconfirmed  bool
}

// newFieldReader asks for the keys of a batch; not at all where the library lacks the
// function.
func newFieldReader(has lib.Symbols, b metric.FieldBatch, exists func(metric.FieldKey) bool) fieldReader {
	f := fieldReader{keys: b.Keys, supported: make([]bool, len(b.Keys)), requestIndex: make([]int32, len(b.Keys)), denialCounts: make([]uint8, len(b.Keys))}
	for i, k := range f.keys {
		f.supported[i] = has[lib.FieldValuesSymbol] && exists(k)
	}
	f.requestAll()
	return f
}

// requestAll takes back what was dropped and why, and all values.
func (f *fieldReader) requestAll() {
	clear(f.denialCounts)
	f.restoreDropped()
}

// restoreDropped takes back what was dropped, and all values.
func (f *fieldReader) restoreDropped() {
	f.requests, f.keyIndex, f.droppedSince, f.unconfirmed = f.requests[:0], f.keyIndex[:0], time.Time{}, false
	for i, k := range f.keys {
		f.requestIndex[i] = -1
		if !f.supported[i] {
			continue
		}
		f.requestIndex[i] = int32(len(f.requests))
		f.requests = append(f.requests, newFieldRequest(k))
		f.keyIndex = append(f.keyIndex, int32(i))
	}
}

// enable adds the keys that the GPU turns out to have, without a value.
func (f *fieldReader) enable(exists func(metric.FieldKey) bool) {
	for i, k := range f.keys {
		if f.supported[i] || !exists(k) {
			continue
		}
		f.supported[i], f.requestIndex[i] = true, int32(len(f.requests))
		f.requests = append(f.requests, newFieldRequest(k))
		f.keyIndex = append(f.keyIndex, int32(i))
	}
}

// newFieldRequest returns an entry for a call. It holds nothing of an earlier call: one driver
// was reported to add to the old value (https://github.com/NVIDIA/go-nvml/issues/46), and
// an entry that the driver leaves alone must not look answered.
func newFieldRequest(k metric.FieldKey) nvml.FieldValue {
	return nvml.FieldValue{FieldId: k.ID, ScopeId: k.N, NvmlReturn: uint32(nvml.ERROR_UNKNOWN)}
}

// read fetches all values. Where one of them says that the GPU or the library is
// gone, that is the answer. An id that the GPU turns out not to
// have is dropped, so that the call returns the sooner: but not on the word of a GPU
// that answers nothing else, nor for good, since health is judged by some of them.
func (f *fieldReader) read(handle nvml.Device, now time.Time) nvml.Return {
	if !f.droppedSince.IsZero() && now.Sub(f.droppedSince) >= f.retryInterval() {
		f.restoreDropped()
	}
	if len(f.requests) == 0 { // go-nvml takes the address of the first
		return nvml.SUCCESS
	}
	for i, k := range f.keyIndex {
		f.requests[i] = newFieldRequest(f.keys[k])
	}
	if ret := handle.GetFieldValues(f.requests); ret != nvml.SUCCESS {
		f.requestAll()
		return ret
	}
	for i := range f.requests {
		if ret := nvml.Return(f.requests[i].NvmlReturn); lib.IsFinal(ret) {
			f.requestAll()
			return ret
		}
	}
	if f.anyAnswered() {
		f.dropUnsupported(now)
	} else {
		f.requestAll()
	}
	return nvml.SUCCESS
}

// hasRequests tells whether there is anything to ask.
func (f *fieldReader) hasRequests() bool { return len(f.requests) > 0 || !f.droppedSince.IsZero() }

// anyAnswered tells whether the newest call gave any value.
func (f *fieldReader) anyAnswered() bool {
	for i := range f.requests {
		if nvml.Return(f.requests[i].NvmlReturn) == nvml.SUCCESS {
			return true
		}
	}
	return false
}

// retryInterval is how long what was dropped is not asked for.
func (f *fieldReader) retryInterval() time.Duration {
	if f.unconfirmed {
		return unconfirmedRetryInterval
	}
	return confirmedRetryInterval
}

// dropUnsupported has what the GPU does not have not be asked for.
func (f *fieldReader) dropUnsupported(now time.Time) {
	kept := 0
	for i := range f.requests {
		k := f.keyIndex[i]
		ret := nvml.Return(f.requests[i].NvmlReturn)
		if lib.IsNotSupported(ret) {
			f.requestIndex[k] = -1
			f.denialCounts[k] = min(f.denialCounts[k]+1, DenialsToConfirm)
			f.unconfirmed = f.unconfirmed || f.denialCounts[k] < DenialsToConfirm
			continue
		}
		if ret == nvml.SUCCESS {
			f.denialCounts[k] = 0
		}
		f.requests[kept], f.keyIndex[kept], f.requestIndex[k] = f.requests[i], k, int32(kept)
		kept++
	}
	if kept < len(f.requests) && f.droppedSince.IsZero() {
		f.droppedSince = now
	}
	f.requests, f.keyIndex = f.requests[:kept], f.keyIndex[:kept]
}

// isDropped tells whether the GPU said that it does not have a key, or cannot have it.
func (f *fieldReader) isDropped(i int) bool { return f.requestIndex[i] < 0 }

// isConfirmedUnsupported reports whether the GPU has said so of a key that it could have, often enough
// to be believed.
func (f *fieldReader) isConfirmedUnsupported(i int) bool {
	return f.supported[i] && f.isDropped(i) && f.denialCounts[i] >= DenialsToConfirm
}

// failed reports whether the newest call gave nothing for a key which the GPU has: what it
// gave before may be so still.
func (f *fieldReader) failed(i int) bool {
	at := f.requestIndex[i]
	if at < 0 {
		return false
	}
	ret := nvml.Return(f.requests[at].NvmlReturn)
	return ret != nvml.SUCCESS && !lib.IsNotSupported(ret)
}

// allDropped tells whether that goes for all keys of a source.
func (f *fieldReader) allDropped(r metric.FieldRange) bool {
	for i := range r.N {
		if !f.isDropped(r.Start + i) {
			return false
		}
	}
	return true
}

// value is what the newest call gave for a key, if that is not negative.
func (f *fieldReader) value(i int) (float64, bool) {
	v, ok := f.rawValue(i)
	return v, ok && v >= 0
}

// rawValue is what the newest call gave for a key.
func (f *fieldReader) rawValue(i int) (float64, bool) {
	at := f.requestIndex[i]
	if at < 0 {
		return 0, false
	}
	v := &f.requests[at]
	return metric.DecodeField(v.ValueType, v.Value, nvml.Return(v.NvmlReturn))
}

// wrapsAt is the value at which a counter begins again at 0, by the type in which the
// driver gives it; 0: never.
func (f *fieldReader) wrapsAt(i int) float64 {
	at := f.requestIndex[i]
	if at < 0 {
		return 0
	}
	switch nvml.ValueType(f.requests[at].ValueType) {
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
