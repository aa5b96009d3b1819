package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"golang.org/x/net/netutil"
)

// socketName is the socket of operator commands in the state folder.
const socketName = "podgauge.sock"

// operatorPath is the path of commands that change something. The other paths
// of the socket are those of the JSON API.
const operatorPath = "/operator"

// Limits of the socket. Only root can connect.
const (
	maxSocketConns      = 4 // further connections wait
	maxCommandRequest   = 4 << 10
	maxDeviceName       = 128
	maxReason           = 256
	operatorTimeout     = 30 * time.Second // of a command: a release waits for driver calls
	storeTimeout        = 3 * time.Second
	socketRetryInterval = 10 * time.Second
)

// The actions of an commandRequest.
const (
	actionRetire  = "retire"
	actionTrust   = "trust"
	actionForget  = "forget"
	actionRelease = "release"
	actionResume  = "resume"
)

// commandRequest is a command of an administrator.
type commandRequest struct {
	Action string `json:"action"`
	// Device of actionRetire, actionTrust and actionForget: UUID of a GPU or MIG
	// device, index of a GPU, or GPU:MIG as in `podgauge status`.
	Device string `json:"device,omitempty"`
	Reason string `json:"reason,omitempty"` // of actionRetire
}

// commandResponse is the response to a command that was carried out. After an
// api.ErrorResponse nothing has changed, unless the error names a change that
// may follow.
type commandResponse struct {
	Lines []string `json:"lines"`           // the new state, and what still holds
	Holds bool     `json:"holds,omitempty"` // a trusted device is not healthy
}

// parseCommandRequest parses and checks a request.
func parseCommandRequest(body io.Reader) (r commandRequest, err error) {
	if err := json.NewDecoder(body).Decode(&r); err != nil {
		return r, fmt.Errorf("parse request: %w", err)
	}
	return r, r.check()
}

func (r *commandRequest) check() error {
	switch r.Action {
	case actionRelease, actionResume:
		return nil
	case actionRetire, actionTrust, actionForget:
	default:
		return fmt.Errorf("%q: expected %s, %s, %s, %s or %s",
			r.Action, actionRetire, actionTrust, actionForget, actionRelease, actionResume)
	}
	isPrintable := func(s string) bool {
		return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
	}
	switch {
	case r.Device == "" || len(r.Device) > maxDeviceName || !isPrintable(r.Device):
		return errors.New("expected a UUID, the index of a GPU, or GPU:MIG as in podgauge status")
	case r.Action == actionRetire && strings.TrimSpace(r.Reason) == "":
		return errors.New("--reason: required to retire a device")
	case r.Action != actionRetire && r.Reason != "":
		return fmt.Errorf("--reason: not valid for %s", r.Action)
	case len(r.Reason) > maxReason || !isPrintable(r.Reason):
		return fmt.Errorf("--reason: expected one line of printable text, at most %d bytes", maxReason)
	}
	return nil
}

// serveSocket serves operator commands and the JSON API at the socket in the
// state folder until ctx is done. A folder that cannot be written affects
// nothing else.
func (a *app) serveSocket(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+operatorPath, a.handleOperator)
	mux.Handle(api.Root, a.metrics.APIHandler())
	path := filepath.Join(a.o.health.stateDir, socketName)
	logged := ""
	for ctx.Err() == nil {
		server := newHTTPServer(mux, a.log)
		server.BaseContext = func(net.Listener) context.Context { return ctx }
		err := serveHTTP(ctx, server, "commands", func() error {
			l, err := listenSocket(path)
			if err != nil {
				return err
			}
			return server.Serve(netutil.LimitListener(l, maxSocketConns))
		})
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			a.log.Warn("cannot serve the socket of podgauge commands", "socket", path, "err", err)
		}
		retry.Sleep(ctx, socketRetryInterval) //nolint:errcheck // the loop ends
	}
	return nil
}

// listenSocket replaces the socket of an earlier process. Before Chmod, the
// umask of a container (022) lets only root connect.
func listenSocket(path string) (net.Listener, error) {
	if err := text.CheckSocketPath(path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // a later process may have replaced the socket
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close() //nolint:errcheck // without a connection
		return nil, err
	}
	return l, nil
}

func (a *app) handleOperator(w http.ResponseWriter, r *http.Request) {
	request, err := parseCommandRequest(http.MaxBytesReader(w, r.Body, maxCommandRequest))
	if err != nil {
		api.WriteError(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), operatorTimeout)
	defer cancel()
	var response commandResponse
	switch request.Action {
	case actionRelease:
		response.Lines = []string{"the driver is released: all devices are unhealthy until podgauge driver resume"}
		err = a.monitor.Release(ctx)
	case actionResume:
		response.Lines = []string{"the driver is in use: devices recover when their checks pass"}
		err = a.monitor.Resume(ctx)
	default:
		response, err = a.overruleHealth(ctx, request)
	}
	if err != nil {
		a.log.Warn("command failed", "action", request.Action, "device", request.Device, "err", err)
		api.WriteError(w, http.StatusConflict, err)
		return
	}
	json.NewEncoder(w).Encode(response) //nolint:errcheck // the client is gone
}

// overruleHealth retires, trusts or forgets a device.
func (a *app) overruleHealth(ctx context.Context, r commandRequest) (commandResponse, error) {
	statuses := a.node.Statuses()
	for _, d := range a.monitor.Missing() {
		if !slices.ContainsFunc(statuses, func(s device.Status) bool { return s.ID == d.ID }) {
			statuses = append(slices.Clip(statuses), device.Status{Device: d, Gone: true})
		}
	}
	if statuses == nil {
		return commandResponse{}, errors.New("no device is known yet: the driver has not listed any")
	}
	id, name := device.ID(r.Device), r.Device
	if i := slices.IndexFunc(statuses, func(s device.Status) bool { return isNamed(&s, r.Device) }); i >= 0 {
		id, name = statuses[i].ID, deviceTitle(&statuses[i])
	}
	var lines []string
	var trusted device.Trusted
	var err error
	switch r.Action {
	case actionRetire:
		err = a.monitor.Retire(ctx, id, r.Reason)
		lines = append([]string{name + " is retired: " + r.Reason}, a.ownerLines(id)...)
	case actionForget:
		err = a.monitor.Forget(ctx, id)
		lines = []string{name + " is forgotten"}
		if missing := a.checkDevices(); missing != nil {
			lines = append(lines, missing.Error())
		}
	default:
		trusted, err = a.monitor.Trust(ctx, id)
		lines = a.trustLines(id, name, trusted)
	}
	switch {
	case errors.Is(err, device.ErrUnknownDevice):
		return commandResponse{}, fmt.Errorf("no device %q: expected one of %s", r.Device, deviceNames(statuses))
	case err != nil:
		return commandResponse{}, err
	}
	if changed := r.Action != actionTrust || trusted.Retired; changed {
		err = a.store(ctx)
	}
	if err != nil {
		lines = append(lines, fmt.Sprintf("not stored on disk, a restart of podgauge loses this change: %v", err))
	}
	return commandResponse{Lines: lines, Holds: r.Action == actionTrust && len(a.notHealthy(id)) > 0}, nil
}

// isNamed reports whether a device has a name: the UUID, or the index unless the device is gone.
func isNamed(s *device.Status, name string) bool {
	return name == string(s.ID) || !s.Gone && name == deviceIndex(s)
}

// deviceIndex returns the index of a GPU, and GPU:MIG of a MIG device, as `podgauge status` shows.
func deviceIndex(s *device.Status) string {
	if s.WholeGPU() {
		return strconv.Itoa(s.Index)
	}
	return fmt.Sprintf("%d:%d", s.Index, s.MIGDeviceIndex)
}

func deviceTitle(s *device.Status) string { return fmt.Sprintf("GPU %s (%s)", deviceIndex(s), s.ID) }

func deviceNames(statuses []device.Status) string {
	names := make([]string, len(statuses))
	for i := range statuses {
		names[i] = fmt.Sprintf("%s (%s)", deviceIndex(&statuses[i]), statuses[i].ID)
	}
	return cmp.Or(strings.Join(names, ", "), "none: the node has no GPU")
}

// notHealthy returns the unhealthy devices among a device and, for a GPU, its MIG devices.
func (a *app) notHealthy(id device.ID) (unhealthy []device.Status) {
	statuses := a.node.Statuses()
	for _, s := range statuses {
		if !s.Healthy && (s.ID == id || s.GPU == device.GPU(id)) {
			unhealthy = append(unhealthy, s)
		}
	}
	return unhealthy
}

// ownerLines returns a line if containers have the device, or a MIG device of the GPU.
func (a *app) ownerLines(id device.ID) []string {
	allocations, _ := a.node.Allocations.Get()
	var owners []string
	for _, s := range a.notHealthy(id) { // the device is retired
		for _, r := range allocations.ForDevice(s.ID) {
			if name := r.Owner.Namespace + "/" + r.Owner.Pod; r.Owner != (device.Owner{}) && !slices.Contains(owners, name) {
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
func (a *app) trustLines(id device.ID, name string, t device.Trusted) (lines []string) {
	for _, s := range a.notHealthy(id) {
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
	return lines
}

// store waits until health and incidents, which the next process reads, are on
// disk.
func (a *app) store(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	a.incidents.Flush()
	return a.state.Wait(ctx)
}
