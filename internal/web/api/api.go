// Package api answers in JSON what is known of devices, their holders and what happened to
// them.
//
// It asks neither the driver nor the kubelet: what it says is what was published last. Its
// shapes are a public contract (docs/api.md): fields are added, and never change.
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

// Root is the path that all others begin with.
const Root = "/api/v1/"

// The paths.
const (
	DevicesPath   = Root + "devices"
	HoldersPath   = Root + "holders"
	IncidentsPath = Root + "incidents"
)

// NodeState returns the published state of a node. Its methods call neither the driver nor the kubelet.
type NodeState interface {
	Statuses() ([]device.Status, <-chan struct{})
	Allocations() (device.Allocations, <-chan struct{})
	Driver() device.Driver
	Incidents() incident.Snapshot
}

// node is a node with its name.
type node struct {
	NodeState
	name string
}

// Handler answers below Root.
func Handler(name string, state NodeState) http.Handler {
	n := node{state, name}
	endpoints := map[string]apiEndpoint{
		DevicesPath:   {[]string{"device"}, n.handleDevices},
		HoldersPath:   {[]string{"device", "namespace", "pod"}, n.handleHolders},
		IncidentsPath: {[]string{"device", "namespace", "pod", "reason", "since", "limit"}, n.handleIncidents},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, ok := endpoints[r.URL.Path]
		switch {
		case !ok:
			WriteError(w, http.StatusNotFound, fmt.Errorf("nothing is at %s: want %s, %s or %s", r.URL.Path, DevicesPath, HoldersPath, IncidentsPath))
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			WriteError(w, http.StatusMethodNotAllowed, fmt.Errorf("%s: want GET or HEAD", r.Method))
		default:
			e.serve(w, r)
		}
	})
}

// apiEndpoint is one path: the parameters that it takes, and its answer.
type apiEndpoint struct {
	params []string
	handle func(q Query, now time.Time) any
}

func (e apiEndpoint) serve(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	q, err := ParseQuery(r.URL.RawQuery, e.params, now)
	if err != nil {
		WriteError(w, http.StatusBadRequest, err)
		return
	}
	writeJSON(w, http.StatusOK, e.handle(q, now))
}

// ErrorResponse is the answer to a question that has none.
type ErrorResponse struct {
	Error string `json:"error"` // one line
}

// WriteError answers with an error.
func WriteError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, ErrorResponse{strings.ToValidUTF8(err.Error(), "\uFFFD")})
}

// writeJSON makes the answer before it begins to send it: what cannot be encoded is an error,
// and not half an answer.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // it is no HTML, as Content-Type says and nosniff has believed
	if err := encoder.Encode(v); err != nil {
		body.Reset()
		status = http.StatusInternalServerError
		encoder.Encode(ErrorResponse{"encode the answer: " + err.Error()}) //nolint:errcheck // a string can be encoded
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	w.Write(body.Bytes()) //nolint:errcheck // whoever asked has gone
}
