package health

import (
	"errors"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	listInterval         = 10 * time.Second
	noDriverListInterval = time.Second             // while the driver cannot list
	listTimeout          = 4500 * time.Millisecond // for a listing that does not return
	waitTimeout          = 10 * time.Second        // for a Wait that does not return, or that keeps failing
	waitRetryInterval    = time.Second             // after a failed Wait
	linkRetryInterval    = time.Minute             // after a failed or incomplete reading of the links
)

// A driver may hang as a whole, as its locks are shared by all GPUs. The engine
// finds the hang within five seconds: the first call that does not return makes
// checks of all GPUs due, and due again every maxCheckSpacing, as the driver may
// hang later.
const (
	callPollInterval   = 250 * time.Millisecond // between looks at calls that hang, or that a release waits for
	hangSuspectTimeout = 500 * time.Millisecond // for one call, before the other GPUs are checked
	driverHangTimeout  = 2 * time.Second        // for calls about all GPUs
)

// startCalls starts the calls that are due. One of Devices and Links runs at a
// time: the driver may keep the thread for long.
func (e *engine) startCalls() {
	if e.links.pending && e.links.due(e.now) && !e.list.running() {
		e.links.pending = false
		e.links.start(e.now)
		e.emit(readLinks{})
	}
	if e.list.due(e.now) && !e.links.running() {
		e.list.start(e.now)
		e.emit(list{})
	}
	if len(e.devices) > 0 && e.wait.due(e.now) {
		if e.wait.failingSince.IsZero() {
			e.wait.failingSince = e.now
		}
		e.wait.start(e.now)
		e.emit(wait{})
	}
}

func (e *engine) handleListing(devices []device.Device, err error) {
	e.listingBegan, e.listingFailed = e.list.startedAt, devices == nil && err != nil
	interval := listInterval
	if e.listingFailed {
		interval = noDriverListInterval
	}
	e.list.end(e.now, retry.Aligned(interval))
	if e.phase != phaseActive { // the listing began before the release
		return
	}
	switch {
	case errors.Is(err, device.ErrDriverReplaced):
		e.setDriver(device.DriverReplaced, err)
		e.replacedErr = err
		e.stopCalls("driver_replaced")
	case errors.Is(err, device.ErrNoDriver):
		e.setDriver(device.DriverAbsent, err)
	case e.listingFailed:
		e.setDriver(device.DriverFailing, err)
	default:
		switch {
		case e.driverHung: // listings may work while calls about GPUs do not
		case e.driverErr != nil:
			e.setDriver(device.DriverFailing, e.driverErr)
		default:
			e.setDriver(device.DriverUp, err)
		}
		e.merge(devices)
		e.scheduleLinks(devices)
	}
}

// scheduleLinks makes a reading of links due if the set of GPUs has changed.
func (e *engine) scheduleLinks(devices []device.Device) {
	var gpus []device.GPU
	for _, d := range devices {
		if d.WholeGPU() {
			gpus = append(gpus, d.GPU)
		}
	}
	slices.Sort(gpus)
	if !slices.Equal(gpus, e.links.gpus) {
		e.links.gpus = gpus
		e.links.pending = true
		e.links.nextAt = e.now
	}
}

// handleLinks publishes the links. Another reading follows an error.
func (e *engine) handleLinks(links []device.Link, err error) {
	e.links.logError(e.log, "cannot read all links between GPUs", err)
	e.links.end(e.now, linkRetryInterval)
	e.links.pending = e.links.pending || err != nil
	if links != nil {
		e.emit(setLinks(links))
	}
}

func (e *engine) handleWait(event device.Event, err error) {
	e.wait.logError(e.log, "cannot wait for driver events", err)
	if err != nil {
		e.wait.end(e.now, retry.Aligned(waitRetryInterval))
		e.checkAll()
		return
	}
	e.wait.end(e.now, 0)
	e.wait.failingSince = time.Time{}
	if event != (device.Event{}) {
		e.report(event, e.now)
	}
}

// detectStalls finds calls that do not return.
func (e *engine) detectStalls() {
	if e.phase != phaseActive {
		return
	}
	if e.list.running() && e.now.Sub(e.list.startedAt) > listTimeout {
		e.setDriverHung(errors.New("the driver's library hangs"))
	}
	if e.links.running() && e.now.Sub(e.links.startedAt) > e.options.UnhealthyTimeout { // delays listings
		e.setDriverHung(errors.New("the query of links in the driver's library hangs"))
	}
	e.detectDriverHang()
	e.detectInterruption()
	for gpu, g := range e.gpus {
		e.markAll(g, evidence{kind: evidenceResetCount, resets: g.resets})
		stalled := e.calls[gpu].busy > e.options.UnhealthyTimeout ||
			!g.stalledSince.IsZero() && e.now.Sub(g.stalledSince) > e.options.UnhealthyTimeout
		if !g.assessed {
			stalled = e.now.After(g.checkDeadline)
		}
		if stalled {
			e.markFault(g, Cause{Reason: "not_responding", FaultAt: e.now, notedAt: e.now})
		}
	}
}

// detectInterruption logs the begin and the end of an interruption of the
// driver's events. A Wait takes seconds.
func (e *engine) detectInterruption() {
	interrupted := !e.wait.failingSince.IsZero() && e.now.Sub(e.wait.failingSince) > waitTimeout
	if interrupted == e.wait.interrupted {
		return
	}
	e.wait.interrupted = interrupted
	e.emit(setInterrupted(interrupted))
	if interrupted {
		e.log.Warn("driver events interrupted", "err", e.wait.err)
	} else {
		e.log.Info("driver events resumed")
	}
}

// detectDriverHang finds a driver that hangs as a whole: calls about all listed
// GPUs hang. A listing follows the hang.
func (e *engine) detectDriverHang() {
	listed, hung := 0, 0
	for gpu, g := range e.gpus {
		if !g.listed || !g.assessed {
			continue
		}
		listed++
		if e.calls[gpu].busy >= driverHangTimeout {
			hung++
		}
	}
	wasHung := e.driverHung
	e.driverHung = listed > 0 && hung == listed
	switch {
	case e.driverHung:
		e.setDriverHung(errors.New("calls to all GPUs hang"))
	case wasHung:
		e.requestList()
	}
}

// setDriverHung keeps the first error of a hang: several calls hang at once, and
// each change of the error is logged.
func (e *engine) setDriverHung(err error) {
	if e.driver.State != device.DriverNotResponding {
		e.setDriver(device.DriverNotResponding, err)
	}
}
