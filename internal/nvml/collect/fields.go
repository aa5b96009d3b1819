package collect

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// fieldReader reads a batch of fields in one call. The driver answers each
// field separately.
type fieldReader struct {
	metric.FieldBatch
	fields   []field           // by key
	requests []nvml.FieldValue // reused by each call
	asked    []*field          // by request
}

// field is the newest answer for a key.
type field struct {
	attempt
	exists bool // false: a link that the GPU lacks, or a function that the library lacks
	answer nvml.FieldValue
}

// newFieldReader returns a reader of the existing keys, or of no key if the
// library lacks the function.
func newFieldReader(has lib.Symbols, b metric.FieldBatch, exists func(metric.FieldKey) bool) fieldReader {
	f := fieldReader{FieldBatch: b, fields: make([]field, len(b.Keys))}
	if has[lib.FieldValuesSymbol] {
		f.enable(exists)
	}
	return f
}

// enable adds keys, as of new links.
func (f *fieldReader) enable(exists func(metric.FieldKey) bool) {
	for i, k := range f.Keys {
		f.fields[i].exists = f.fields[i].exists || exists(k)
	}
}

// forget forgets all answers, so all keys are due.
func (f *fieldReader) forget() {
	for i := range f.fields {
		f.fields[i].attempt = attempt{}
	}
}

// read fetches the due values, and reports whether there is any. A field's
// report of a lost GPU or library is returned. Denials count only beside an
// answer: otherwise the driver knows no field at present.
func (f *fieldReader) read(handle nvml.Device, now time.Time) (answered bool, ret nvml.Return) {
	f.prepareRequests(now)
	if len(f.requests) == 0 { // go-nvml takes the address of the first
		return false, nvml.SUCCESS
	}
	ret = handle.GetFieldValues(f.requests)
	for i := range f.requests {
		result := nvml.Return(f.requests[i].NvmlReturn)
		answered = answered || result == nvml.SUCCESS
		if ret == nvml.SUCCESS && lib.IsFinal(result) {
			ret = result
		}
	}
	if ret != nvml.SUCCESS {
		f.forget()
		return false, ret
	}
	for i, field := range f.asked {
		field.record(nvml.Return(f.requests[i].NvmlReturn), now)
		field.answer = f.requests[i]
		if !answered {
			field.attempt = attempt{}
		}
	}
	return answered, nvml.SUCCESS
}

// prepareRequests makes a request for each due key. It has no trace of an
// earlier call: a driver was reported to add to the old value
// (https://github.com/NVIDIA/go-nvml/issues/46), and an untouched entry must
// not look answered.
func (f *fieldReader) prepareRequests(now time.Time) {
	f.requests, f.asked = f.requests[:0], f.asked[:0]
	for i, k := range f.Keys {
		field := &f.fields[i]
		interval := time.Duration(0)
		if f.Slow[i] {
			interval = slowInterval
		}
		if field.exists && field.due(interval, now) {
			f.requests = append(f.requests,
				nvml.FieldValue{FieldId: k.ID, ScopeId: k.N, NvmlReturn: uint32(nvml.ERROR_UNKNOWN)})
			f.asked = append(f.asked, field)
		}
	}
}

// failed reports whether the newest call returned no value for a supported key:
// the earlier value may still hold.
func (f *fieldReader) failed(i int) bool {
	return f.fields[i].exists && f.fields[i].denials == 0 && !f.fields[i].succeeded()
}

// lacksAll reports whether the GPU lacks all keys of a source.
func (f *fieldReader) lacksAll(r metric.FieldRange) bool {
	return !slices.ContainsFunc(f.fields[r.Start:][:r.N], func(s field) bool { return s.exists && s.denials == 0 })
}

// value returns the newest value of a key, unless it is negative.
func (f *fieldReader) value(i int) (float64, bool) {
	v, ok := f.rawValue(i)
	return v, ok && v >= 0
}

// rawValue returns the newest value of a key.
func (f *fieldReader) rawValue(i int) (float64, bool) {
	if !f.fields[i].succeeded() {
		return 0, false
	}
	v := &f.fields[i].answer
	return metric.DecodeField(v.ValueType, v.Value, nvml.Return(v.NvmlReturn))
}

// wrapsAt is the value at which a counter with a value restarts, by the
// driver's type; 0: never.
func (f *fieldReader) wrapsAt(i int) float64 {
	switch nvml.ValueType(f.fields[i].answer.ValueType) {
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
