package capture

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Format is the version of the file's format.
const Format = 1

// File is a capture, with each answer in a line.
type File[A any] struct {
	Format   int          `json:"podgauge_capture"`
	Podgauge string       `json:"podgauge"` // version
	Arch     string       `json:"arch"`     // Go's name
	Answers  map[string]A `json:"answers"`  // by Call.Key
}

// Answer is the newest answer to a call, with the times of all calls. Fields
// and GPM metrics are answers too, without times.
type Answer struct {
	Return nvml.Return `json:"return,omitempty"`
	// Values are the results, and then the arguments that the call fills.
	Values []any     `json:"values,omitempty"`
	Micros []float64 `json:"us,omitempty"`
	Hung   bool      `json:"hung,omitempty"` // a call did not return

	pending int
}

// recorder records the answers of a library.
type recorder struct {
	mu      sync.Mutex
	answers map[string]*Answer // guarded by mu
}

// answer makes a call, and records the answer.
func (r *recorder) answer(c *Call) []reflect.Value {
	key := c.Key()
	r.update(key, func(a *Answer) { a.pending++ })
	results, took := c.Make()
	newest := Answer{}
	for _, v := range results {
		switch t := v.Type(); {
		case t == reflect.TypeFor[nvml.Return]():
			newest.Return = nvml.Return(v.Int()) //nolint:gosec // of 32 bits
		case t == reflect.TypeFor[error]() && !v.IsNil():
			newest.Return = nvml.ERROR_FUNCTION_NOT_FOUND
		case t.Kind() != reflect.Interface: // otherwise a handle
			newest.Values = append(newest.Values, maskedValue(c, v))
		}
	}
	parts := c.Parts()
	for part, v := range parts {
		r.update(part, func(a *Answer) { a.Values = []any{maskedValue(c, v)} })
	}
	filled := c.Filled()
	// A list with its length: entries of earlier calls are behind it.
	if len(filled) == 2 && filled[0].Kind() == reflect.Slice && filled[1].CanUint() {
		filled[0] = filled[0].Slice(0, min(filled[0].Len(), int(filled[1].Uint())))
	}
	for _, v := range filled {
		if len(parts) == 0 {
			newest.Values = append(newest.Values, maskedValue(c, v))
		}
	}
	r.update(key, func(a *Answer) {
		a.Return, a.Values, a.Micros = newest.Return, newest.Values, append(a.Micros, float64(took.Nanoseconds())/1e3)
		a.pending--
	})
	return results
}

func (r *recorder) update(key string, change func(*Answer)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers[key] == nil {
		r.answers[key] = &Answer{}
	}
	change(r.answers[key])
	r.answers[key].Hung = r.answers[key].pending > 0
}

// write writes the file.
func (r *recorder) write(w io.Writer, version string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	page, err := json.Marshal(File[*Answer]{Format, version, runtime.GOARCH, r.answers})
	if err == nil {
		_, err = fmt.Fprintln(w, strings.ReplaceAll(string(page), `]},"`, "]},\n\""))
	}
	return err
}
