// Package api answers queries about devices, allocations and incidents in JSON.
//
// Responses show the published state, without a call to the driver or the
// kubelet. The fields are a public contract (docs/reference/api.md): fields are
// added, and never change.
package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// The paths. All begin with Root.
const (
	Root            = "/api/v1/"
	NodePath        = Root + "node"
	DevicesPath     = Root + "devices"
	AllocationsPath = Root + "allocations"
	IncidentsPath   = Root + "incidents"
)

// ErrorResponse is the response to a query that failed.
type ErrorResponse struct {
	Error string `json:"error"` // one line
}

// Handler serves the paths below Root with the state of the source.
func Handler(source Source) http.Handler {
	endpoints := map[string]route{
		NodePath:        {[]string{"since"}, (*Node).handleNode, source},
		DevicesPath:     {[]string{"device"}, (*Node).handleDevices, source},
		AllocationsPath: {[]string{"device", "namespace", "pod"}, (*Node).handleAllocations, source},
		IncidentsPath: {
			[]string{"device", "namespace", "pod", "reason", "since", "limit"}, (*Node).handleIncidents, source,
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, ok := endpoints[r.URL.Path]
		switch {
		case !ok:
			expected := fmt.Sprintf("%s, %s, %s or %s", NodePath, DevicesPath, AllocationsPath, IncidentsPath)
			WriteError(w, http.StatusNotFound, fmt.Errorf("unknown path %s: expected %s", r.URL.Path, expected))
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			WriteError(w, http.StatusMethodNotAllowed, fmt.Errorf("%s: expected GET or HEAD", r.Method))
			return
		}
		body, _, err := e.newest(r)
		switch {
		case err != nil:
			WriteError(w, http.StatusBadRequest, err)
		case IsWatch(r):
			e.stream(w, r)
		default:
			writeJSON(w, http.StatusOK, body)
		}
	})
}

// WriteError writes an ErrorResponse.
func WriteError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, ErrorResponse{strings.ToValidUTF8(err.Error(), "\uFFFD")})
}

// writeJSON encodes v before it sends the status, so that a failed encoding is an
// error and not half a response.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := encode(v)
	if err != nil {
		status = http.StatusInternalServerError
		body, _ = encode(ErrorResponse{err.Error()}) // a string can be encoded
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body) //nolint:errcheck // the client disconnected
}
