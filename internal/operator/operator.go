// Package operator carries out the commands of an administrator: retire, trust
// or forget a device, release or resume the driver.
package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/readiness"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Limits of a command.
const (
	// Timeout is the time for a command: a release waits for driver calls.
	Timeout = 30 * time.Second

	maxRequest    = 4 << 10
	maxDeviceName = 128
	maxReason     = 256
	storeTimeout  = 3 * time.Second
)

// The actions of a Request.
const (
	Retire  = "retire"
	Trust   = "trust"
	Forget  = "forget"
	Release = "release"
	Resume  = "resume"
)

// Request is a command of an administrator.
type Request struct {
	Action string `json:"action"`
	// Device of Retire, Trust and Forget: UUID of a GPU or MIG
	// device, index of a GPU, or GPU:MIG as in `podgauge status`.
	Device string `json:"device,omitempty"`
	Reason string `json:"reason,omitempty"` // of Retire
}

// Response is the response to a command that was carried out. After an
// api.ErrorResponse nothing has changed, unless the error names a change that
// may follow.
type Response struct {
	Lines []string `json:"lines"`           // the new state, and what still holds
	Holds bool     `json:"holds,omitempty"` // a trusted device is not healthy
}

// ParseRequest parses and checks a request.
func ParseRequest(body io.Reader) (r Request, err error) {
	if err := json.NewDecoder(body).Decode(&r); err != nil {
		return r, fmt.Errorf("parse request: %w", err)
	}
	return r, r.Check()
}

// Check returns why a request is invalid.
func (r *Request) Check() error {
	switch r.Action {
	case Release, Resume:
		return nil
	case Retire, Trust, Forget:
	default:
		return fmt.Errorf("%q: expected %s, %s, %s, %s or %s",
			r.Action, Retire, Trust, Forget, Release, Resume)
	}
	isPrintable := func(s string) bool {
		return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
	}
	switch {
	case r.Device == "" || len(r.Device) > maxDeviceName || !isPrintable(r.Device):
		return errors.New("expected a UUID, the index of a GPU, or GPU:MIG as in podgauge status")
	case r.Action == Retire && strings.TrimSpace(r.Reason) == "":
		return errors.New("--reason: required to retire a device")
	case r.Action != Retire && r.Reason != "":
		return fmt.Errorf("--reason: not valid for %s", r.Action)
	case len(r.Reason) > maxReason || !isPrintable(r.Reason):
		return fmt.Errorf("--reason: expected one line of printable text, at most %d bytes", maxReason)
	}
	return nil
}

// CommandHandler carries out requests.
type CommandHandler struct {
	State   *node.State
	Monitor *health.Monitor
	// Incidents and Store have what the next process reads.
	Incidents *incident.Log
	Store     *state.Store
	// RetiredFile lists retired devices, which commands do not change.
	RetiredFile string
	Log         *slog.Logger
}

// ServeHTTP implements http.Handler.
func (h *CommandHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := ParseRequest(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), Timeout)
	defer cancel()
	var response Response
	switch request.Action {
	case Release:
		response.Lines = []string{"the driver is released: all devices are unhealthy until podgauge driver resume"}
		err = h.Monitor.Release(ctx)
	case Resume:
		response.Lines = []string{"the driver is in use: devices recover when their checks pass"}
		err = h.Monitor.Resume(ctx)
	default:
		response, err = h.overruleHealth(ctx, request)
	}
	if err != nil {
		h.Log.Warn("command failed", "action", request.Action, "device", request.Device, "err", err)
		api.WriteError(w, http.StatusConflict, err)
		return
	}
	json.NewEncoder(w).Encode(response) //nolint:errcheck // the client is gone
}

// overruleHealth retires, trusts or forgets a device.
func (h *CommandHandler) overruleHealth(ctx context.Context, r Request) (Response, error) {
	statuses := h.State.Statuses()
	for _, d := range h.Monitor.Missing() {
		if !slices.ContainsFunc(statuses, func(s device.Status) bool { return s.ID == d.ID }) {
			statuses = append(slices.Clip(statuses), device.Status{Device: d, Gone: true})
		}
	}
	if statuses == nil {
		return Response{}, errors.New("no device is known yet: the driver has not listed any")
	}
	id, name, err := findDevice(statuses, r.Device)
	if err != nil {
		return Response{}, err
	}
	var lines []string
	var trusted health.Trusted
	switch r.Action {
	case Retire:
		err = h.Monitor.Retire(ctx, id, r.Reason)
		lines = append([]string{name + " is retired: " + r.Reason}, h.ownerLines(id)...)
	case Forget:
		err = h.Monitor.Forget(ctx, id)
		lines = []string{name + " is forgotten"}
		if missing := readiness.Devices(h.State, h.Monitor); missing != nil {
			lines = append(lines, missing.Error())
		}
	default:
		trusted, err = h.Monitor.Trust(ctx, id)
		lines = h.trustLines(id, name, trusted)
	}
	switch {
	case errors.Is(err, health.ErrUnknownDevice):
		return Response{}, fmt.Errorf("no device %q: expected one of %s", r.Device, deviceNames(statuses))
	case err != nil:
		return Response{}, err
	}
	if changed := r.Action != Trust || trusted.Retired; changed {
		err = h.store(ctx)
	}
	if err != nil {
		lines = append(lines, fmt.Sprintf("not stored on disk, a restart of podgauge loses this change: %v", err))
	}
	return Response{Lines: lines, Holds: r.Action == Trust && len(h.notHealthy(id)) > 0}, nil
}

// findDevice returns the device with a name, and its title. An unknown name
// stays. A gone GPU may have the index of another.
func findDevice(statuses []device.Status, name string) (id device.ID, title string, err error) {
	id, title = device.ID(name), name
	var named []string // by index
	for i := range statuses {
		switch s := &statuses[i]; {
		case name == string(s.ID):
			return s.ID, deviceTitle(s), nil
		case name == s.Number() && s.Gone:
			named = append(named, string(s.ID)+" (gone)")
		case name == s.Number():
			id, title, named = s.ID, deviceTitle(s), append(named, string(s.ID))
		}
	}
	if len(named) > 1 {
		err = fmt.Errorf("%q names %s: use the UUID", name, strings.Join(named, " and "))
	}
	return id, title, err
}

func deviceTitle(s *device.Status) string { return fmt.Sprintf("GPU %s (%s)", s.Number(), s.ID) }

func deviceNames(statuses []device.Status) string {
	names := text.Each(statuses, func(s device.Status) string { return fmt.Sprintf("%s (%s)", s.Number(), s.ID) })
	return cmp.Or(strings.Join(names, ", "), "none: the node has no GPU")
}

// notHealthy returns the unhealthy devices among a device and, for a GPU, its MIG devices.
func (h *CommandHandler) notHealthy(id device.ID) (unhealthy []device.Status) {
	statuses := h.State.Statuses()
	for _, s := range statuses {
		if !s.Healthy && (s.ID == id || s.GPU == device.GPU(id)) {
			unhealthy = append(unhealthy, s)
		}
	}
	return unhealthy
}

// ownerLines returns a line if containers have the device, or a MIG device of the GPU.
func (h *CommandHandler) ownerLines(id device.ID) []string {
	allocations := h.State.Allocations.Newest()
	var owners []string
	for _, s := range h.notHealthy(id) { // the device is retired
		for _, r := range allocations.ForDevice(s.ID) {
			name := r.Owner.Namespace + "/" + r.Owner.Pod
			if r.Owner != (allocation.Owner{}) && !slices.Contains(owners, name) {
				owners = append(owners, name)
			}
		}
	}
	if owners == nil {
		return nil
	}
	return []string{"allocated until the pods end: " + text.JoinFirst(owners)}
}

// trustLines describes the result of a Trust: each device that is still unhealthy, with the cause.
func (h *CommandHandler) trustLines(id device.ID, name string, t health.Trusted) (lines []string) {
	list, listed := h.State.Retirements(), ""
	for _, s := range h.notHealthy(id) {
		if _, ok := list.Of(string(s.ID), string(s.GPU), s.Serial()); ok && s.Reason == device.ReasonRetired {
			listed = cmp.Or(listed, fmt.Sprintf("%s stays retired by %s: run kubectl podgauge unretire, "+
				"or remove the entry from the file's ConfigMap", deviceTitle(&s), h.RetiredFile))
		}
		line := deviceTitle(&s) + " is " + s.Health.String() + ": " + s.Reason
		if s.Action != "" {
			line += " (" + s.Action + ")"
		}
		lines = append(lines, line)
	}
	switch {
	case t.Err != nil:
		lines = append(lines, fmt.Sprintf("%s: %v", name, t.Err))
	case lines == nil:
		lines = []string{name + " is healthy"}
	}
	if t.RepairPending {
		lines = append(lines, "a memory repair is pending: reset the GPU when it is idle")
	}
	if t.Retired {
		lines = append(lines, "the retirement has ended")
	}
	if listed != "" {
		lines = append(lines, listed)
	}
	return lines
}

// store waits until health and incidents are on disk.
func (h *CommandHandler) store(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	h.Incidents.Flush()
	return h.Store.Wait(ctx)
}
