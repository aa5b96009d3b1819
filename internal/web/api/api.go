// Package api answers queries about devices, allocations and incidents in JSON.
//
// Responses show the published state, without a call to the driver or the kubelet. Their fields are a public contract
// (docs/reference/api.md): fields are added, and never change.
package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// The paths. All begin with Root.
const (
	Root            = "/api/v1/"
	DevicesPath     = Root + "devices"
	AllocationsPath = Root + "allocations"
	IncidentsPath   = Root + "incidents"
)

// ErrorResponse is the response to a query that failed.
type ErrorResponse struct {
	Error string `json:"error"` // one line
}

// route is a path with its parameters.
type route struct {
	params []string
	handle func(q Query, now time.Time) any
}

// Handler serves the paths below Root.
func Handler(name string, state NodeState) http.Handler {
	n := node{state, name}
	endpoints := map[string]route{
		DevicesPath:     {[]string{"device"}, n.handleDevices},
		AllocationsPath: {[]string{"device", "namespace", "pod"}, n.handleAllocations},
		IncidentsPath:   {[]string{"device", "namespace", "pod", "reason", "since", "limit"}, n.handleIncidents},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, ok := endpoints[r.URL.Path]
		switch {
		case !ok:
			WriteError(w, http.StatusNotFound, fmt.Errorf("unknown path %s: expected %s, %s or %s", r.URL.Path, DevicesPath, AllocationsPath, IncidentsPath))
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			WriteError(w, http.StatusMethodNotAllowed, fmt.Errorf("%s: expected GET or HEAD", r.Method))
			return
		}
		now := time.Now()
		q, err := ParseQuery(r.URL.RawQuery, e.params, now)
		if err != nil {
			WriteError(w, http.StatusBadRequest, err)
			return
		}
		statuses, _ := state.Statuses()
		writeJSON(w, http.StatusOK, e.handle(q.resolveIndex(statuses), now))
	})
}

// WriteError writes an ErrorResponse.
func WriteError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, ErrorResponse{strings.ToValidUTF8(err.Error(), "\uFFFD")})
}

// writeJSON encodes v before it sends the status, so that a failed encoding is an error and not half a response.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // browsers honor Content-Type because of nosniff
	if err := encoder.Encode(v); err != nil {
		body.Reset()
		status = http.StatusInternalServerError
		encoder.Encode(ErrorResponse{"encode response: " + err.Error()}) //nolint:errcheck // a string can be encoded
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	w.Write(body.Bytes()) //nolint:errcheck // the client disconnected
}

// NodeState returns the published state of a node. Its methods call neither the driver nor the kubelet.
type NodeState interface {
	Statuses() ([]device.Status, <-chan struct{})
	Allocations() (device.Allocations, <-chan struct{})
	Driver() device.Driver
	Incidents() incident.Snapshot
	// ExpectedGPUs returns the expected number of GPUs; 0: any number.
	ExpectedGPUs() int
}

// node answers queries about a node. No list is null.
type node struct {
	NodeState
	name string
}

// KubeletJSON is the result of the latest request for allocations.
type KubeletJSON struct {
	Up           bool      `json:"up"`
	LastResponse time.Time `json:"last_response,omitzero"` // the list of allocations is from then
	Error        string    `json:"error,omitempty"`
}

func newKubeletJSON(a device.Allocations) KubeletJSON {
	return KubeletJSON{Up: a.Err == nil && !a.At.IsZero(), LastResponse: a.At, Error: errorText(a.Err)}
}

// errorText returns an error as one line.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
