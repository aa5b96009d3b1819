// Package kmsg reads Xids from the kernel log, for Xids that NVML does not report.
package kmsg

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/retry"
)

// Source is the device.Event.Source of all reports.
const Source = "kmsg"

const (
	// resolveInterval is the interval between lookups of the GPUs of pending lines.
	resolveInterval = time.Second
	// idleInterval is the longest wait for a record: a kernel may store one without waking the readers.
	idleInterval = time.Minute
	// reopenInterval is the delay after a failed read.
	reopenInterval = 10 * time.Second
	// listingTimeout is the maximum time for which a line waits for the listing of its GPU.
	listingTimeout = 5 * time.Minute
	maxPending     = 256
	// maxRecordBytes is above the kernel's maximum (CONSOLE_EXT_LOG_MAX, 8 KiB).
	maxRecordBytes = 16 << 10
	// driverLoadedPrefix begins the driver's first message.
	driverLoadedPrefix = "NVRM: loading NVIDIA UNIX"
)

// Handler resolves and receives the Xids of the log. All calls come from Run's goroutine.
type Handler interface {
	// EventOf returns the event of a line; false if no known GPU has the address.
	EventOf(XidLine) (device.Event, bool)
	// Report receives an event with the wall time of the record, in the order of the log. Report must not block.
	Report(e device.Event, at time.Time)
	// LastReported returns the newest time at which an earlier process reported such an event, or zero.
	LastReported(device.Event) time.Time
}

// Reader follows the kernel log from the boot on: no other source has Xids from before the start of this process.
//
// The log does not show a reset of a GPU, except if the driver was loaded again. So a historical Xid does not make a
// device unhealthy: the GPU is checked, once per kind of Xid, and Xids without a need for recovery are ignored.
type Reader struct {
	source  kernelLog
	handler Handler
	log     *slog.Logger

	// All below belong to Run's goroutine.
	caughtUp     bool   // all records from before the start are read
	nextSequence uint64 // lower records were read before the log was opened again
	pending      []pendingLine
	resolvedAt   time.Time                 // the newest lookup of pending lines
	logLimiter   *loglimit.Limiter[string] // of messages about lost lines
}

// pendingLine is a line that waits for the listing of its GPU.
type pendingLine struct {
	line       XidLine
	historical bool
	writtenAt  time.Time
	deadline   time.Time
}

// NewReader returns a Reader of the log at a path, /dev/kmsg.
func NewReader(path string, handler Handler, log *slog.Logger) *Reader {
	return &Reader{source: devKmsg(path), handler: handler, log: log, logLimiter: loglimit.New[string](time.Minute)}
}

// Run reads the log until ctx is done. A log that is missing or not readable at the start is logged once and not opened again.
func (r *Reader) Run(ctx context.Context) error {
	lastError := ""
	for first := true; ctx.Err() == nil; first = false {
		err := r.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case first && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
			r.log.Info("kernel log not readable, receiving Xids from NVML only", "err", err)
			<-ctx.Done()
			return nil
		case err.Error() != lastError:
			lastError = err.Error()
			r.log.Warn("cannot read kernel log, retrying", "err", err)
		}
		_ = retry.Sleep(ctx, reopenInterval) // an error ends the loop
	}
	return nil
}

// follow reads the log until an error or until ctx is done.
func (r *Reader) follow(ctx context.Context) error {
	s, err := r.source.open()
	if err != nil {
		return err
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.close)()
	buf := make([]byte, maxRecordBytes)
	for ctx.Err() == nil {
		wait := retry.Aligned(idleInterval)
		switch {
		case !r.caughtUp:
			wait = 0
		case len(r.pending) > 0:
			wait = retry.Aligned(resolveInterval)
		}
		n, err := s.read(buf, wait)
		now := time.Now()
		switch {
		case errors.Is(err, errNoRecord):
			r.caughtUp = true
		case errors.Is(err, syscall.EPIPE): // the next read returns the oldest record
			r.warn("kernel log overrun, lines are lost", now)
		case err != nil:
			return err
		case r.handleRecord(buf[:n], now):
			r.resolvedAt = time.Time{}
		}
		if r.caughtUp && now.Sub(r.resolvedAt) >= resolveInterval {
			r.resolvePending(now)
		}
	}
	return nil
}

func (r *Reader) warn(message string, now time.Time) {
	if r.logLimiter.Allow(message, now) {
		r.log.Warn(message)
	}
}

// handleRecord handles a record and reports whether it was an Xid.
func (r *Reader) handleRecord(data []byte, now time.Time) bool {
	rec, ok := parseRecord(data)
	if !ok || rec.sequence < r.nextSequence {
		return false
	}
	r.nextSequence = rec.sequence + 1
	if strings.HasPrefix(rec.message, driverLoadedPrefix) { // all GPUs were reset
		r.pending = nil
		return false
	}
	line, isXid := ParseXidLine(rec.message)
	if isXid {
		p := pendingLine{line, !r.caughtUp, now, now.Add(listingTimeout)}
		if age := r.source.uptime() - rec.uptime; p.historical && age > 0 {
			p.writtenAt = now.Add(-age)
		}
		r.enqueue(p, now)
	}
	return isXid
}

// enqueue adds a pending line. Of equal historical lines, only the newest stays.
func (r *Reader) enqueue(p pendingLine, now time.Time) {
	same := func(o pendingLine) bool { return p.historical && o.historical && o.line == p.line }
	if i := slices.IndexFunc(r.pending, same); i >= 0 {
		r.pending[i] = p
		return
	}
	if len(r.pending) >= maxPending {
		r.warn("too many Xids of unknown GPUs in the kernel log, lines are dropped", now)
		return
	}
	r.pending = append(r.pending, p)
}

// resolvePending reports the pending lines of known GPUs and drops lines past their deadline.
func (r *Reader) resolvePending(now time.Time) {
	r.resolvedAt = now
	r.pending = slices.DeleteFunc(r.pending, func(p pendingLine) bool {
		e, known := r.handler.EventOf(p.line)
		if known {
			r.report(p.line.refine(e), p)
			return true
		}
		if now.Before(p.deadline) {
			return false
		}
		r.log.Info("unknown GPU in the kernel log", "pci", p.line.PCI, "xid", p.line.Xid)
		return true
	})
}

func (r *Reader) report(e device.Event, p pendingLine) {
	e.Source = Source
	if p.historical {
		drift := 5*time.Second + r.source.uptime()/10_000 // of the log's clock from the uptime
		if last := r.handler.LastReported(e); e.Recovery == device.RecoveryNone || !last.IsZero() && !p.writtenAt.After(last.Add(drift)) {
			return
		}
		e.Historical, e.Recovery = true, device.RecoveryChecksPass
		e.Device = "" // the instance ids may belong to a newer MIG device
	}
	r.handler.Report(e, p.writtenAt)
}
