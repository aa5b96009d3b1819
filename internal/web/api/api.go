// Package api answers queries about devices, allocations and incidents in JSON.
//
// Responses show the published state, without a call to the driver or the
// kubelet. The fields are a public contract (docs/reference/api.md): fields are
// added, and never change.
package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
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
	handle func(n *Node, q Query, now time.Time) any
}

// Handler serves the paths below Root with the state that newest returns.
func Handler(newest func() Node) http.Handler {
	endpoints := map[string]route{
		DevicesPath:     {[]string{"device"}, (*Node).handleDevices},
		AllocationsPath: {[]string{"device", "namespace", "pod"}, (*Node).handleAllocations},
		IncidentsPath:   {[]string{"device", "namespace", "pod", "reason", "since", "limit"}, (*Node).handleIncidents},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, ok := endpoints[r.URL.Path]
		switch {
		case !ok:
			expected := fmt.Sprintf("%s, %s or %s", DevicesPath, AllocationsPath, IncidentsPath)
			WriteError(w, http.StatusNotFound, fmt.Errorf("unknown path %s: expected %s", r.URL.Path, expected))
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
		n := newest()
		writeJSON(w, http.StatusOK, e.handle(&n, q.resolveIndex(n.Statuses), now))
	})
}

// WriteError writes an ErrorResponse.
func WriteError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, ErrorResponse{strings.ToValidUTF8(err.Error(), "\uFFFD")})
}

// writeJSON encodes v before it sends the status, so that a failed encoding is an
// error and not half a response.
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
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	w.Write(body.Bytes()) //nolint:errcheck // the client disconnected
}
