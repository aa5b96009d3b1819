package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// fieldReader reads a batch of fields in one call. The driver answers each field separately.
type fieldReader struct {
	keys      []metric.FieldKey
	supported []bool // keys of existing links, and all others
	// requests are the keys in use, and keyIndex the positions in keys. Both are reused for each call.
	requests     []nvml.FieldValue
	keyIndex     []int32
	requestIndex []int32   // position of each key in requests; -1: dropped
	droppedSince time.Time // zero: no supported key is dropped
	denialCounts []uint8   // denials in a row of each key, up to DenialsToConfirm
	unconfirmed  bool      // a key was dropped after fewer denials
}

// newFieldReader returns a reader of the possible keys, or of no key if the library lacks the function.
func newFieldReader(has lib.Symbols, b metric.FieldBatch, exists func(metric.FieldKey) bool) fieldReader {
	f := fieldReader{keys: b.Keys, supported: make([]bool, len(b.Keys)), requestIndex: make([]int32, len(b.Keys)), denialCounts: make([]uint8, len(b.Keys))}
	for i, k := range f.keys {
		f.supported[i] = has[lib.FieldValuesSymbol] && exists(k)
	}
	f.requestAll()
	return f
}

// requestAll forgets all denials and values.
func (f *fieldReader) requestAll() {
	clear(f.denialCounts)
	f.restoreDropped()
}

// restoreDropped requests dropped keys again, and forgets all values.
func (f *fieldReader) restoreDropped() {
	f.requests, f.keyIndex, f.droppedSince, f.unconfirmed = f.requests[:0], f.keyIndex[:0], time.Time{}, false
	for i := range f.keys {
		if f.requestIndex[i] = -1; f.supported[i] {
			f.request(i)
		}
	}
}

func (f *fieldReader) request(i int) {
	f.requestIndex[i] = int32(len(f.requests))
	f.requests = append(f.requests, newFieldRequest(f.keys[i]))
	f.keyIndex = append(f.keyIndex, int32(i))
}

// enable adds keys of new links.
func (f *fieldReader) enable(exists func(metric.FieldKey) bool) {
	for i, k := range f.keys {
		if !f.supported[i] && exists(k) {
			f.supported[i] = true
			f.request(i)
		}
	}
}

// newFieldRequest returns an entry without traces of an earlier call: a driver was reported to add to the old value
// (https://github.com/NVIDIA/go-nvml/issues/46), and an untouched entry must not look answered.
func newFieldRequest(k metric.FieldKey) nvml.FieldValue {
	return nvml.FieldValue{FieldId: k.ID, ScopeId: k.N, NvmlReturn: uint32(nvml.ERROR_UNKNOWN)}
}

// read fetches all values. A field's report of a lost GPU or library is returned. Unsupported fields are dropped for a faster
// call: only for a while, since checks need some, and only after an answer to at least a single field.
func (f *fieldReader) read(handle nvml.Device, now time.Time) nvml.Return {
	retry := confirmedRetryInterval
	if f.unconfirmed {
		retry = unconfirmedRetryInterval
	}
	if !f.droppedSince.IsZero() && now.Sub(f.droppedSince) >= retry {
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

// hasRequests reports whether there is anything to read.
func (f *fieldReader) hasRequests() bool { return len(f.requests) > 0 || !f.droppedSince.IsZero() }

// anyAnswered reports whether the newest call returned any value.
func (f *fieldReader) anyAnswered() bool {
	for i := range f.requests {
		if nvml.Return(f.requests[i].NvmlReturn) == nvml.SUCCESS {
			return true
		}
	}
	return false
}

// dropUnsupported drops unsupported fields.
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

// isConfirmedUnsupported reports whether the GPU has denied a possible key often enough.
func (f *fieldReader) isConfirmedUnsupported(i int) bool {
	return f.supported[i] && f.requestIndex[i] < 0 && f.denialCounts[i] >= DenialsToConfirm
}

// failed reports whether the newest call returned no value for a supported key: the earlier value may still hold.
func (f *fieldReader) failed(i int) bool {
	at := f.requestIndex[i]
	if at < 0 {
		return false
	}
	ret := nvml.Return(f.requests[at].NvmlReturn)
	return ret != nvml.SUCCESS && !lib.IsNotSupported(ret)
}

// allDropped reports whether the GPU lacks all keys of a source.
func (f *fieldReader) allDropped(r metric.FieldRange) bool {
	for i := range r.N {
		if f.requestIndex[r.Start+i] >= 0 {
			return false
		}
	}
	return true
}

// value returns the newest value of a key, unless it is negative.
func (f *fieldReader) value(i int) (float64, bool) {
	v, ok := f.rawValue(i)
	return v, ok && v >= 0
}

// rawValue returns the newest value of a key.
func (f *fieldReader) rawValue(i int) (float64, bool) {
	at := f.requestIndex[i]
	if at < 0 {
		return 0, false
	}
	v := &f.requests[at]
	return metric.DecodeField(v.ValueType, v.Value, nvml.Return(v.NvmlReturn))
}

// wrapsAt is the value at which a counter restarts, by the driver's type; 0: never.
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
