package collect

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// fieldReader reads a batch of fields in one call. The driver answers each field separately. Unsupported fields are dropped for a faster
// call: only for a while, since checks need some, and only after an answer to at least a single field.
type fieldReader struct {
	metric.FieldBatch
	states       []fieldState      // by key
	requests     []nvml.FieldValue // of the newest call; reused for each call
	droppedSince time.Time         // zero: no field is dropped
	unconfirmed  bool              // a field was dropped after fewer denials than DenialsToConfirm
}

type fieldState struct {
	exists  bool // false: a link that the GPU lacks, or a function that the library lacks
	dropped bool
	denials uint8 // in a row, up to DenialsToConfirm
	request int32 // position in requests; -1: none
}

// newFieldReader returns a reader of the existing keys, or of no key if the library lacks the function.
func newFieldReader(has lib.Symbols, b metric.FieldBatch, exists func(metric.FieldKey) bool) fieldReader {
	f := fieldReader{FieldBatch: b, states: make([]fieldState, len(b.Keys))}
	f.forget()
	if has[lib.FieldValuesSymbol] {
		f.enable(exists)
	}
	return f
}

// enable adds keys, as of new links.
func (f *fieldReader) enable(exists func(metric.FieldKey) bool) {
	for i, k := range f.Keys {
		f.states[i].exists = f.states[i].exists || exists(k)
	}
}

// forget forgets all denials and values.
func (f *fieldReader) forget() {
	f.requests, f.droppedSince, f.unconfirmed = f.requests[:0], time.Time{}, false
	for i := range f.states {
		f.states[i] = fieldState{exists: f.states[i].exists, request: -1}
	}
}

// read fetches all values. A field's report of a lost GPU or library is returned.
func (f *fieldReader) read(handle nvml.Device, now time.Time) nvml.Return {
	f.prepareRequests(now)
	if len(f.requests) == 0 { // go-nvml takes the address of the first
		return nvml.SUCCESS
	}
	ret := handle.GetFieldValues(f.requests)
	for i := range f.requests {
		if of := nvml.Return(f.requests[i].NvmlReturn); ret == nvml.SUCCESS && lib.IsFinal(of) {
			ret = of
		}
	}
	if ret != nvml.SUCCESS || !f.anyAnswered() {
		f.forget()
		return ret
	}
	f.dropUnsupported(now)
	return nvml.SUCCESS
}

// prepareRequests makes a request for each existing key. Dropped keys are left out until the time of the next try. A request has no trace
// of an earlier call: a driver was reported to add to the old value (https://github.com/NVIDIA/go-nvml/issues/46), and an untouched entry
// must not look answered.
func (f *fieldReader) prepareRequests(now time.Time) {
	retry := confirmedRetryInterval
	if f.unconfirmed {
		retry = unconfirmedRetryInterval
	}
	restore := now.Sub(f.droppedSince) >= retry
	if restore {
		f.droppedSince, f.unconfirmed = time.Time{}, false
	}
	f.requests = f.requests[:0]
	for i, k := range f.Keys {
		s := &f.states[i]
		s.dropped = s.dropped && !restore
		s.request = -1
		if s.exists && !s.dropped {
			s.request = int32(len(f.requests))
			f.requests = append(f.requests, nvml.FieldValue{FieldId: k.ID, ScopeId: k.N, NvmlReturn: uint32(nvml.ERROR_UNKNOWN)})
		}
	}
}

func (f *fieldReader) dropUnsupported(now time.Time) {
	for i := range f.states {
		s := &f.states[i]
		if s.request < 0 {
			continue
		}
		ret := nvml.Return(f.requests[s.request].NvmlReturn)
		switch {
		case ret == nvml.SUCCESS:
			s.denials = 0
		case lib.IsNotSupported(ret):
			s.dropped, s.denials = true, min(s.denials+1, DenialsToConfirm)
			f.unconfirmed = f.unconfirmed || s.denials < DenialsToConfirm
			if f.droppedSince.IsZero() {
				f.droppedSince = now
			}
		}
	}
}

// hasKeys reports whether there is anything to read.
func (f *fieldReader) hasKeys() bool {
	return slices.ContainsFunc(f.states, func(s fieldState) bool { return s.exists })
}

// anyAnswered reports whether the newest call returned any value.
func (f *fieldReader) anyAnswered() bool {
	for i := range f.requests {
		if nvml.Return(f.requests[i].NvmlReturn) == nvml.SUCCESS {
			return true
		}
	}
	return false
}

// isConfirmedUnsupported reports whether the GPU has denied an existing key often enough.
func (f *fieldReader) isConfirmedUnsupported(i int) bool {
	return f.states[i].dropped && f.states[i].denials >= DenialsToConfirm
}

// failed reports whether the newest call returned no value for a supported key: the earlier value may still hold.
func (f *fieldReader) failed(i int) bool {
	s := f.states[i]
	return s.exists && !s.dropped && (s.request < 0 || nvml.Return(f.requests[s.request].NvmlReturn) != nvml.SUCCESS)
}

// lacksAll reports whether the GPU lacks all keys of a source.
func (f *fieldReader) lacksAll(r metric.FieldRange) bool {
	return !slices.ContainsFunc(f.states[r.Start:][:r.N], func(s fieldState) bool { return s.exists && !s.dropped })
}

// value returns the newest value of a key, unless it is negative.
func (f *fieldReader) value(i int) (float64, bool) {
	v, ok := f.rawValue(i)
	return v, ok && v >= 0
}

// rawValue returns the newest value of a key.
func (f *fieldReader) rawValue(i int) (float64, bool) {
	at := f.states[i].request
	if at < 0 {
		return 0, false
	}
	v := &f.requests[at]
	return metric.DecodeField(v.ValueType, v.Value, nvml.Return(v.NvmlReturn))
}

// wrapsAt is the value at which a counter with a value restarts, by the driver's type; 0: never.
func (f *fieldReader) wrapsAt(i int) float64 {
	switch nvml.ValueType(f.requests[f.states[i].request].ValueType) {
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
