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

// Sources are who knows.
type Sources struct {
	// Node is the node's name.
	Node string
	// Look is the Board's.
	Look func() ([]device.Status, <-chan struct{})
	// Held is who holds what, as the kubelet last said.
	Held func() (device.Holders, <-chan struct{})
	// Driver is the driver's state.
	Driver func() device.Driver
	// Incidents are what is remembered; nil: nothing is.
	Incidents func() incident.Known
}

// remembered are the incidents.
func (s Sources) remembered() incident.Known {
	if s.Incidents == nil {
		return incident.Known{}
	}
	return s.Incidents()
}

// Handler answers below Root.
func Handler(s Sources) http.Handler {
	endpoints := map[string]endpoint{
		DevicesPath:   {[]string{"device"}, s.devices},
		HoldersPath:   {[]string{"device", "namespace", "pod"}, s.holders},
		IncidentsPath: {[]string{"device", "namespace", "pod", "reason", "since", "limit"}, s.incidents},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, ok := endpoints[r.URL.Path]
		switch {
		case !ok:
			Refuse(w, http.StatusNotFound, fmt.Errorf("nothing is at %s: want %s, %s or %s", r.URL.Path, DevicesPath, HoldersPath, IncidentsPath))
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			Refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("%s: want GET or HEAD", r.Method))
		default:
			e.serve(w, r)
		}
	})
}

// endpoint is one path: the parameters that it takes, and its answer.
type endpoint struct {
	takes  []string
	answer func(q Query, now time.Time) any
}

func (e endpoint) serve(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	q, err := ParseQuery(r.URL.RawQuery, e.takes, now)
	if err != nil {
		Refuse(w, http.StatusBadRequest, err)
		return
	}
	send(w, http.StatusOK, e.answer(q, now))
}

// Error is the answer to a question that has none.
type Error struct {
	Error string `json:"error"` // one line
}

// Refuse answers with an error.
func Refuse(w http.ResponseWriter, status int, err error) {
	send(w, status, Error{strings.ToValidUTF8(err.Error(), "\uFFFD")})
}

// send makes the answer before it begins to send it: what cannot be encoded is an error,
// and not half an answer.
func send(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // it is no HTML, as Content-Type says and nosniff has believed
	if err := encoder.Encode(v); err != nil {
		body.Reset()
		status = http.StatusInternalServerError
		encoder.Encode(Error{"encode the answer: " + err.Error()}) //nolint:errcheck // a string can be encoded
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	w.Write(body.Bytes()) //nolint:errcheck // whoever asked has gone
}
