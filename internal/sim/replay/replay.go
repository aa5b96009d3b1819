// Package replay is NVML with the answers of a capture.
package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/capture"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// maxBytes is more than the length of any capture.
const maxBytes = 64 << 20

// File is a capture.
type File capture.File[*Answer]

// Answer is an answer in a capture.
type Answer struct {
	capture.Answer
	Values []json.RawMessage `json:"values"`
	values []reflect.Value   // by the types of the function
}

// Read reads a capture.
func Read(r io.Reader) (*File, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxBytes))
	if err != nil {
		return nil, err
	}
	var f File
	decoder := json.NewDecoder(bytes.NewReader(content))
	err = decoder.Decode(&f)
	switch {
	case f.Format == 0 && !bytes.HasPrefix(content, []byte(`{"podgauge_capture":`)):
		return nil, errors.New("not a capture of podgauge")
	case f.Format != 0 && f.Format != capture.Format:
		return nil, fmt.Errorf("format %d of a capture, expected %d: use podgauge-sim %s",
			f.Format, capture.Format, f.Podgauge)
	case err != nil:
		return nil, fmt.Errorf("damaged capture: %w", err)
	}
	functions := functions()
	for _, key := range slices.Sorted(maps.Keys(f.Answers)) {
		if err := f.Answers[key].decode(functions[Function(key)]); err != nil {
			return nil, fmt.Errorf("damaged capture: %q: %w", key, err)
		}
	}
	return &f, nil
}

// Function returns the function of a key, which follows the handle.
func Function(key string) string {
	words := strings.Fields(key + " ?")
	if strings.HasPrefix(words[0], "gpu") || words[0] == "events" { // handles
		return words[1]
	}
	return words[0]
}

// decode decodes the values.
func (a *Answer) decode(types []reflect.Type) error {
	if types == nil || a == nil || len(a.Values) > len(types) {
		return errors.New("unknown function or number of values")
	}
	a.values = zeroValues(types)
	for i, text := range a.Values {
		if metric, ok := reflect.TypeAssert[*nvml.GpmMetric](a.values[i].Addr()); ok {
			metric.Value = math.NaN() // null
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(a.values[i].Addr().Interface()); err != nil {
			return err
		}
	}
	return nil
}

func zeroValues(types []reflect.Type) (values []reflect.Value) {
	for _, t := range types {
		values = append(values, reflect.New(t).Elem())
	}
	return values
}

// functions returns the types of the values of all answers.
func functions() map[string][]reflect.Type {
	all := map[string][]reflect.Type{
		"FieldValue":          {reflect.TypeFor[nvml.FieldValue]()},
		"GpmMetric":           {reflect.TypeFor[nvml.GpmMetric]()},
		lib.UtilizationSymbol: {reflect.TypeFor[[]nvml.ProcessUtilizationSample](), reflect.TypeFor[uint32]()},
		// by lib.FabricInfo
		"nvmlDeviceGetGpuFabricInfo_v2": {reflect.TypeFor[nvml.GpuFabricInfo_v2]()},
		"nvmlDeviceGetGpuFabricInfo_v3": {reflect.TypeFor[nvml.GpuFabricInfo_v3]()},
	}
	for _, symbol := range lib.ProcessListSymbols {
		for _, version := range []string{symbol, lib.OlderVersions[symbol][0]} {
			all[version] = []reflect.Type{reflect.TypeFor[[]nvml.ProcessInfo](), reflect.TypeFor[uint32]()}
		}
	}
	for _, of := range []reflect.Type{
		reflect.TypeFor[nvml.Interface](), reflect.TypeFor[nvml.ExtendedInterface](),
		reflect.TypeFor[nvml.Device](), reflect.TypeFor[nvml.GpuInstance](),
		reflect.TypeFor[nvml.EventSet](), reflect.TypeFor[nvml.GpmSample](),
	} {
		for m := range of.Methods() {
			if name := capture.FunctionName(of, m.Name); all[name] == nil {
				all[name] = outputs(m.Type)
			}
		}
	}
	return all
}

// outputs returns the types of a function's values, in the order of
// capture.Answer.
func outputs(function reflect.Type) []reflect.Type {
	types := []reflect.Type{} // known, without values
	for t := range function.Outs() {
		if isValue(t) {
			types = append(types, t)
		}
	}
	for t := range function.Ins() {
		switch t.Kind() {
		case reflect.Pointer:
			types = append(types, t.Elem())
		case reflect.Slice:
			types = append(types, t)
		}
	}
	return types
}

// isValue reports whether the type of a result is neither a handle nor a code.
func isValue(t reflect.Type) bool {
	return t.Kind() != reflect.Interface && t != reflect.TypeFor[nvml.Return]()
}

// Library returns NVML with the answers of the capture. A call that hung hangs,
// and an event never comes. A call that the capture lacks is NOT_SUPPORTED.
func (f *File) Library() nvml.Interface {
	return capture.NewTap(nil, library(f.Answers).answer)
}

// library has the answers of a capture.
type library map[string]*Answer

// answer answers a call.
func (l library) answer(c *capture.Call) []reflect.Value {
	a := l[c.Key()]
	if a == nil {
		a = &Answer{Answer: capture.Answer{Return: nvml.ERROR_NOT_SUPPORTED}, values: zeroValues(outputs(c.Type))}
	}
	ret := a.Return
	switch {
	case a.Hung:
		select {}
	case c.Function == "nvmlEventSetWait":
		time.Sleep(time.Duration(c.Args[0].Uint()) * time.Millisecond) //nolint:gosec // seconds
		ret = nvml.ERROR_TIMEOUT
	}
	parts, filled := c.Parts(), c.Filled()
	for part, v := range parts {
		if answer := l[part]; answer != nil {
			v.Set(answer.values[0])
		} else {
			v.FieldByName("NvmlReturn").SetUint(uint64(nvml.ERROR_NOT_SUPPORTED))
		}
	}
	if len(parts) == 0 && !fill(filled, a.values[len(a.values)-len(filled):]) {
		ret = nvml.ERROR_INSUFFICIENT_SIZE
	}
	return results(c, ret, a.values)
}

// fill fills arguments, and reports whether all lists are long enough.
func fill(args, values []reflect.Value) bool {
	enough := true
	for i, arg := range args {
		if arg.Kind() != reflect.Slice {
			arg.Set(values[i])
			continue
		}
		n := reflect.Copy(arg, values[i])
		enough = enough && n == values[i].Len()
		if samples, ok := reflect.TypeAssert[[]nvml.ProcessUtilizationSample](arg); ok {
			moveToNow(samples[:n])
		}
	}
	return enough
}

// moveToNow gives the newest sample the time of the call.
func moveToNow(samples []nvml.ProcessUtilizationSample) {
	var newest uint64
	for _, s := range samples {
		newest = max(newest, s.TimeStamp)
	}
	for i := range samples {
		samples[i].TimeStamp += uint64(time.Now().UnixMicro()) - newest
	}
}

// results returns the results of a call.
func results(c *capture.Call, ret nvml.Return, values []reflect.Value) (results []reflect.Value) {
	for i := range c.Type.NumOut() {
		v := reflect.New(c.Type.Out(i)).Elem()
		switch {
		case v.Type() == reflect.TypeFor[nvml.Return]():
			v.Set(reflect.ValueOf(ret))
		case v.Type() == reflect.TypeFor[error]():
			if ret != nvml.SUCCESS {
				v.Set(reflect.ValueOf(lib.Error(nvml.ERROR_FUNCTION_NOT_FOUND)))
			}
		case isValue(v.Type()):
			v, values = values[0], values[1:]
		case ret == nvml.SUCCESS || c.Function == "nvmlExtensions": // also without an answer
			v = c.NewHandle(i, nil)
		}
		results = append(results, v)
	}
	return results
}
