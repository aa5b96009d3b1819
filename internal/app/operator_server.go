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
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"golang.org/x/net/netutil"
)

// socketName is the socket of `podgauge device` in the state folder.
const socketName = "podgauge.sock"

// devicePath is the path of `podgauge device` at the socket. The other paths are those of the JSON API.
const devicePath = "/device"

// Limits of the socket. Only root can connect.
const (
	maxDeviceConns       = 4 // further connections wait
	maxDeviceRequest     = 4 << 10
	maxDeviceName        = 128
	maxDeviceNote        = 256
	deviceRequestTimeout = 2 * time.Second  // until the request is read
	deviceActionTimeout  = 15 * time.Second // until the response is written
	deviceStoreTimeout   = 3 * time.Second
	socketRetryInterval  = 10 * time.Second
)

// The actions of a deviceRequest.
const (
	actionRetire = "retire"
	actionTrust  = "trust"
	actionForget = "forget"
)

// deviceRequest is the body of a request of `podgauge device`, in JSON.
type deviceRequest struct {
	Action string `json:"action"`
	Device string `json:"device"`           // UUID of a GPU or MIG device, index of a GPU, or GPU:MIG as in `podgauge status`
	Reason string `json:"reason,omitempty"` // of actionRetire
}

// deviceResponse is the response. After an Error nothing has changed, unless the Error names a change that may follow.
type deviceResponse struct {
	Lines []string `json:"lines,omitempty"` // the new state, and what still holds
	Holds bool     `json:"holds,omitempty"` // a trusted device is not healthy
	Error string   `json:"error,omitempty"`
}

// parseDeviceRequest parses and checks a request.
func parseDeviceRequest(content []byte) (r deviceRequest, err error) {
	if len(content) > maxDeviceRequest {
		return r, fmt.Errorf("request larger than %d bytes", maxDeviceRequest)
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("parse request: %w", err)
	}
	return r, r.check()
}

func (r *deviceRequest) check() error {
	isPrintable := func(s string) bool {
		return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
	}
	switch {
	case r.Action != actionRetire && r.Action != actionTrust && r.Action != actionForget:
		return fmt.Errorf("%q: expected %s, %s or %s", r.Action, actionRetire, actionTrust, actionForget)
	case r.Device == "" || len(r.Device) > maxDeviceName || !isPrintable(r.Device):
		return errors.New("expected a UUID, the index of a GPU, or GPU:MIG as in podgauge status")
	case r.Action == actionRetire && strings.TrimSpace(r.Reason) == "":
		return errors.New("--reason: required to retire a device")
	case r.Action != actionRetire && r.Reason != "":
		return fmt.Errorf("--reason: not valid for %s", r.Action)
	case len(r.Reason) > maxDeviceNote || !isPrintable(r.Reason):
		return fmt.Errorf("--reason: expected one line of printable text, at most %d bytes", maxDeviceNote)
	}
	return nil
}

// serveSocket serves `podgauge device` and the JSON API at the socket in the state folder until ctx is done. A folder that cannot be
// written affects nothing else.
func (a *app) serveSocket(ctx context.Context) error {
	path, logged := filepath.Join(a.o.health.stateDir, socketName), ""
	for ctx.Err() == nil {
		l, err := listenDevices(ctx, path)
		if err == nil {
			logged = ""
			err = a.acceptRequests(ctx, l)
		}
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			a.log.Warn("cannot serve the socket of podgauge commands", "socket", path, "err", err)
		}
		retry.Sleep(ctx, socketRetryInterval) //nolint:errcheck // the loop ends
	}
	return nil
}

// listenDevices replaces the socket of an earlier process. The mode is set before the socket has a name. A disk that hangs costs a goroutine.
func listenDevices(ctx context.Context, path string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) (err error) {
		controlErr := socket.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
		return cmp.Or(controlErr, err)
	}}
	type result struct {
		net.Listener
		err error
	}
	if err := text.CheckSocketPath(path); err != nil {
		return nil, err
	}
	done := make(chan result, 1)
	go func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			done <- result{nil, err}
			return
		}
		l, err := config.Listen(ctx, "unix", path)
		if err == nil {
			l.(*net.UnixListener).SetUnlinkOnClose(false) // a later process may have replaced the socket
		}
		done <- result{l, err}
	}()
	select {
	case r := <-done:
		return r.Listener, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// acceptRequests serves requests until ctx is done or the listener fails.
func (a *app) acceptRequests(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+devicePath, a.handleDevice)
	mux.Handle(api.Root, api.Handler(a.o.hostname, exportedNode{a}))
	server := newHTTPServer(mux, a.log)
	server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout = deviceRequestTimeout, deviceRequestTimeout, deviceActionTimeout
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	return serveHTTP(ctx, server, "commands", func() error { return server.Serve(netutil.LimitListener(l, maxDeviceConns)) })
}

func (a *app) handleDevice(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(io.LimitReader(r.Body, maxDeviceRequest+1))
	if err != nil {
		return // the client is gone, or too slow
	}
	request, err := parseDeviceRequest(content)
	var response deviceResponse
	if err == nil {
		response, err = a.overruleHealth(r.Context(), request)
	}
	if err != nil {
		response.Error = err.Error()
	}
	json.NewEncoder(w).Encode(response) //nolint:errcheck // the client is gone
}

// overruleHealth retires, trusts or forgets a device.
func (a *app) overruleHealth(ctx context.Context, r deviceRequest) (deviceResponse, error) {
	statuses, _ := a.inventory.Get()
	for _, d := range a.monitor.Missing() {
		if !slices.ContainsFunc(statuses, func(s device.Status) bool { return s.ID == d.ID }) {
			statuses = append(slices.Clip(statuses), device.Status{Device: d, Gone: true})
		}
	}
	if statuses == nil {
		return deviceResponse{}, errors.New("no device is known yet: the driver has not listed any")
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
		return deviceResponse{}, fmt.Errorf("no device %q: expected one of %s", r.Device, deviceNames(statuses))
	case err != nil:
		return deviceResponse{}, err
	}
	if changed := r.Action != actionTrust || trusted.Retired; changed {
		err = a.waitStored(ctx, id, r)
	}
	if err != nil {
		lines = append(lines, fmt.Sprintf("not stored on disk, a restart of podgauge loses this change: %v", err))
	}
	return deviceResponse{Lines: lines, Holds: r.Action == actionTrust && len(a.notHealthy(id)) > 0}, nil
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
	statuses, _ := a.inventory.Get()
	for _, s := range statuses {
		if !s.Healthy && (s.ID == id || s.GPU == device.GPU(id)) {
			unhealthy = append(unhealthy, s)
		}
	}
	return unhealthy
}

// ownerLines returns a line if containers have the device, or a MIG device of the GPU.
func (a *app) ownerLines(id device.ID) []string {
	allocations, _ := a.podResources.Snapshot()
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

// waitStored waits until the files have the retirement of a device with its incident, or lack the retirement or the forgotten GPU.
func (a *app) waitStored(ctx context.Context, id device.ID, r deviceRequest) error {
	ctx, cancel := context.WithTimeout(ctx, deviceStoreTimeout)
	defer cancel()
	for {
		health, changed := a.state.Get()
		incidents, added := a.incidents.Stored()
		recorded := slices.ContainsFunc(incidents, func(i incident.Incident) bool {
			return i.Concerns(id) && i.Reason == device.ReasonRetired && i.Note == r.Reason && i.RecoveredAt == nil
		})
		written := health.Written
		switch {
		case written == nil:
		case r.Action == actionForget && !slices.ContainsFunc(written.Records, func(h device.HealthRecord) bool { return h.GPU == device.GPU(id) }),
			r.Action == actionTrust && !written.IsRetired(id),
			r.Action == actionRetire && written.IsRetired(id) && recorded:
			return nil
		}
		select {
		case <-changed:
		case <-added:
		case <-ctx.Done():
			return cmp.Or(a.state.Err(), errors.New("the disk does not respond"))
		}
	}
}
