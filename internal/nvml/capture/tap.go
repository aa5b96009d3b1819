package capture

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// Call is a call of a tapped library.
type Call struct {
	// Of names a GPU or another handle by the calls that return it: "gpu0/mig1";
	// empty: the library.
	Of       string
	Function string // NVML's, without the version that go-nvml chooses
	Args     []reflect.Value
	Type     reflect.Type
	tap      *tap
	actual   reflect.Value // function
}

// tap passes the calls of go-nvml's interfaces to a function. go-nvml's mocks
// have a field for each method, so a new method needs no code here.
type tap struct {
	answer func(*Call) []reflect.Value

	mu sync.Mutex
	// Guarded by mu.
	handles map[any]handle // by tapped interface
	tapped  map[handle]reflect.Value
}

// handle is the library, or something that a call returns.
type handle struct {
	of     reflect.Type // interface
	path   string
	actual any // nil: there is no driver
}

// interfaces are tapped. The functions of each have a prefix.
var interfaces = map[reflect.Type]struct {
	prefix string
	mock   reflect.Type
}{
	reflect.TypeFor[nvml.Interface]():         {"nvml", reflect.TypeFor[mock.Interface]()},
	reflect.TypeFor[nvml.ExtendedInterface](): {"", reflect.TypeFor[mock.ExtendedInterface]()},
	reflect.TypeFor[nvml.Device]():            {"nvmlDevice", reflect.TypeFor[tappedDevice]()},
	reflect.TypeFor[nvml.GpuInstance]():       {"nvmlGpuInstance", reflect.TypeFor[mock.GpuInstance]()},
	reflect.TypeFor[nvml.EventSet]():          {"nvmlEventSet", reflect.TypeFor[mock.EventSet]()},
	reflect.TypeFor[nvml.GpmSample]():         {"nvmlGpmSample", reflect.TypeFor[mock.GpmSample]()},
}

// tappedDevice also taps calls that are no methods of a device.
type tappedDevice struct {
	mock.Device
	tap  *tap
	path string
}

// Intercept implements lib.Interceptor.
func (d *tappedDevice) Intercept(symbol string, call any) any {
	return d.tap.function(d.path, symbol, reflect.TypeOf(call), reflect.ValueOf(call)).Interface()
}

// NewTap returns a library whose calls are answered by a function. The actual
// library is needed for Call.Make only.
func NewTap(actual nvml.Interface, answer func(*Call) []reflect.Value) nvml.Interface {
	t := &tap{answer: answer, handles: map[any]handle{}, tapped: map[handle]reflect.Value{}}
	return t.wrap(handle{reflect.TypeFor[nvml.Interface](), "", actual}).Interface().(nvml.Interface)
}

// wrap returns the tapped interface of a handle, the same one again.
func (t *tap) wrap(h handle) reflect.Value {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.tapped[h]; ok {
		return v
	}
	tapped := reflect.New(interfaces[h.of].mock)
	functions := tapped.Elem()
	if d, ok := reflect.TypeAssert[*tappedDevice](tapped); ok {
		d.tap, d.path, functions = t, h.path, functions.Field(0)
	}
	for field, function := range functions.Fields() {
		if method, isFunction := strings.CutSuffix(field.Name, "Func"); isFunction {
			var actual reflect.Value
			if h.actual != nil {
				actual = reflect.ValueOf(h.actual).MethodByName(method)
			}
			function.Set(t.function(h.path, FunctionName(h.of, method), field.Type, actual))
		}
	}
	t.tapped[h], t.handles[tapped.Interface()] = tapped, h
	return tapped
}

// function returns a function that passes its calls on.
func (t *tap) function(of, name string, typ reflect.Type, actual reflect.Value) reflect.Value {
	return reflect.MakeFunc(typ, func(args []reflect.Value) []reflect.Value {
		return t.answer(&Call{of, name, args, typ, t, actual})
	})
}

// Key identifies the answer to the call: "gpu0 nvmlDeviceGetTemperature 0".
func (c *Call) Key() string { return strings.TrimSpace(c.Of + " " + c.Function + c.keyArgs(" ")) }

// keyArgs returns the arguments, apart from the device itself, times, and what
// the call fills.
func (c *Call) keyArgs(separator string) (args string) {
	isTime := c.Function == "nvmlEventSetWait" || c.Function == lib.UtilizationSymbol
	for _, arg := range c.Args {
		if h, ok := c.tap.find(arg); ok && h.path != c.Of {
			args += separator + h.path
		} else if arg.CanInt() || arg.CanUint() && !isTime || arg.Kind() == reflect.String {
			args += separator + fmt.Sprint(arg.Interface())
		}
	}
	return args
}

// find returns the handle of a tapped interface.
func (t *tap) find(v reflect.Value) (h handle, ok bool) {
	if v.Kind() == reflect.Interface {
		t.mu.Lock()
		defer t.mu.Unlock()
		h, ok = t.handles[v.Interface()]
	}
	return h, ok
}

// Make makes the call, and returns its results and duration.
func (c *Call) Make() ([]reflect.Value, time.Duration) {
	args := slices.Clone(c.Args)
	for i, arg := range args {
		if h, ok := c.tap.find(arg); ok {
			args[i] = reflect.ValueOf(h.actual)
		}
	}
	began := time.Now()
	results := c.actual.Call(args)
	took := time.Since(began)
	for i, v := range results {
		if _, isHandle := interfaces[v.Type()]; isHandle && !v.IsNil() {
			results[i] = c.NewHandle(i, v.Elem().Interface())
		}
	}
	return results, took
}

// shortNames of functions begin the paths of the handles that they return.
var shortNames = map[string]string{
	"nvmlDeviceGetHandleByIndex": "gpu", "nvmlDeviceGetMigDeviceHandleByIndex": "mig",
	"nvmlDeviceGetGpuInstanceById": "instance", "nvmlEventSetCreate": "events", "nvmlGpmSampleAlloc": "sample",
}

// NewHandle returns the i-th result, which is a handle.
func (c *Call) NewHandle(i int, actual any) reflect.Value {
	path := strings.TrimPrefix(c.Of+"/"+shortNames[c.Function]+c.keyArgs(""), "/")
	v := reflect.New(c.Type.Out(i)).Elem()
	v.Set(c.tap.wrap(handle{v.Type(), path, actual}))
	return v
}

// Filled returns the arguments that the call fills: numbers and lists, whose
// elements may be Parts.
func (c *Call) Filled() (values []reflect.Value) {
	for _, arg := range c.Args {
		if arg.Kind() == reflect.Slice {
			values = append(values, arg)
		} else if arg.Kind() == reflect.Pointer {
			values = append(values, arg.Elem())
		}
	}
	return values
}

// Parts returns the fields or GPM metrics that the call fills, by the keys of
// their answers.
func (c *Call) Parts() map[string]reflect.Value {
	parts := map[string]reflect.Value{}
	if len(c.Args) > 0 {
		switch list := c.Args[len(c.Args)-1]; values := list.Interface().(type) {
		case []nvml.FieldValue:
			for i, v := range values {
				parts[fmt.Sprint(c.Of, " FieldValue ", v.FieldId, " ", v.ScopeId)] = list.Index(i)
			}
		case []nvml.GpmMetric:
			for i, v := range values {
				parts[fmt.Sprint(c.Of, " GpmMetric ", c.Args[1], " ", v.MetricId)] = list.Index(i)
			}
		}
	}
	return parts
}

// FunctionName returns the function of an interface's method.
func FunctionName(of reflect.Type, method string) string {
	if strings.HasPrefix(method, "Gpm") {
		return "nvml" + method
	}
	return interfaces[of].prefix + method
}
