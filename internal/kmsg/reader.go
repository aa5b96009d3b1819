// Package kmsg reads Xids from the kernel log, for Xids that NVML does not
// report, and errors of NVSwitches.
package kmsg

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/sxid"
	"golang.org/x/sys/unix"
)

// Source is the device.Event.Source of all reports.
const Source = "kmsg"

const (
	// readInterval is the time between two reads of the log. A line waits for
	// the next read, because only the driver's report may name the MIG device.
	readInterval = time.Second
	// reopenInterval is the delay after a failed read.
	reopenInterval = 10 * time.Second
	// listingTimeout is the maximum time for which a line waits for the listing
	// of its GPU.
	listingTimeout = 5 * time.Minute
	maxPending     = 256
	// maxRecordBytes is above the kernel's maximum (CONSOLE_EXT_LOG_MAX, 8
	// KiB).
	maxRecordBytes = 16 << 10
	// driverLoadedPrefix begins the driver's first message.
	driverLoadedPrefix = "NVRM: loading NVIDIA UNIX"
)

// Handler resolves and receives the Xids of the log. All calls come from Run's
// goroutine.
type Handler interface {
	// EventOf returns the event of a line; false if no known GPU has the
	// address.
	EventOf(XidLine) (device.Event, bool)
	// Report receives a number of equal events with the wall time of the
	// newest. An error ends the Reader.
	Report(ctx context.Context, e device.Event, count int, at time.Time) error
	// LastReported returns the newest time at which an earlier process reported
	// such an event, or zero.
	LastReported(device.Event) time.Time
}

// SwitchHandler receives the errors of NVSwitches: a sxid.Log.
type SwitchHandler interface {
	Record(e sxid.Line, at time.Time, historical bool)
	// OnDriverLoaded follows a reset of all NVSwitches.
	OnDriverLoaded()
}

// Reader follows the kernel log from the boot on: no other source has Xids from
// before the start of this process.
//
// The log does not show a reset of a GPU, except if the driver was loaded
// again. So a historical Xid does not make a device unhealthy: the GPU is
// checked, once per kind of Xid, and Xids without a need for recovery are
// ignored.
type Reader struct {
	source   kernelLog
	handler  Handler
	switches SwitchHandler
	log      *slog.Logger

	// All below belong to Run's goroutine.
	caughtUp     bool   // all records from before the start are read
	nextSequence uint64 // lower records were read before the log was opened again
	pending      []pendingLine
	logLimiter   *loglimit.Limiter[string] // of messages about lost lines
}

// pendingLine is one or more equal lines that wait for the next read, or for
// the listing of their GPU.
type pendingLine struct {
	line       XidLine
	historical bool
	count      int
	writtenAt  time.Time // the newest
	deadline   time.Time
}

// NewReader returns a Reader of the log at a path, /dev/kmsg.
func NewReader(path string, handler Handler, switches SwitchHandler, log *slog.Logger) *Reader {
	return &Reader{
		source: devKmsg(path), handler: handler, switches: switches, log: log,
		logLimiter: loglimit.New[string](time.Minute),
	}
}

// Run reads the log until ctx is done. A log that is missing or not readable at
// the start is logged once and not opened again.
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
		retry.Sleep(ctx, reopenInterval) //nolint:errcheck // the loop ends
	}
	return nil
}

// follow reads the log until an error or until ctx is done.
func (r *Reader) follow(ctx context.Context) error {
	file, err := r.source.open()
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	buf := make([]byte, maxRecordBytes)
	for {
		if err := r.reportPending(ctx, time.Now()); err != nil {
			return err
		}
		if err := r.readAll(file, buf); err != nil {
			return err
		}
		r.caughtUp = true
		if err := retry.Sleep(ctx, retry.Aligned(readInterval)); err != nil {
			return err
		}
	}
}

// readAll reads all records that the log has.
func (r *Reader) readAll(file io.Reader, buf []byte) error {
	for {
		n, err := file.Read(buf)
		now := time.Now()
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return nil
		case errors.Is(err, syscall.EPIPE): // the next read returns the oldest record
			r.warn("kernel log overrun, lines are lost", now)
		case err != nil:
			return err
		default:
			r.handleRecord(buf[:n], now)
		}
	}
}

func (r *Reader) warn(message string, now time.Time) {
	if r.logLimiter.Allow(message, now) {
		r.log.Warn(message)
	}
}

func (r *Reader) handleRecord(data []byte, now time.Time) {
	rec, ok := parseRecord(data)
	if !ok || rec.sequence < r.nextSequence {
		return
	}
	r.nextSequence = rec.sequence + 1
	if strings.HasPrefix(rec.message, driverLoadedPrefix) { // all GPUs were reset
		r.pending = nil
		r.switches.OnDriverLoaded()
		return
	}
	writtenAt := now
	line, isXid := ParseXidLine(rec.message)
	e, isSXid := sxid.ParseLine(rec.message)
	if !r.caughtUp && (isXid || isSXid) {
		writtenAt = now.Add(-max(r.source.uptime()-rec.uptime, 0))
	}
	if isSXid {
		r.switches.Record(e, writtenAt, !r.caughtUp)
	}
	if isXid {
		r.enqueue(pendingLine{line, !r.caughtUp, 1, writtenAt, now.Add(listingTimeout)}, now)
	}
}

// enqueue adds a pending line. Equal historical lines count once.
func (r *Reader) enqueue(p pendingLine, now time.Time) {
	same := func(o pendingLine) bool { return p.historical == o.historical && o.line == p.line }
	if i := slices.IndexFunc(r.pending, same); i >= 0 {
		r.pending[i].writtenAt = p.writtenAt
		if !p.historical {
			r.pending[i].count++
		}
		return
	}
	if len(r.pending) >= maxPending {
		r.warn("too many Xids of unknown GPUs in the kernel log, lines are dropped", now)
		return
	}
	r.pending = append(r.pending, p)
}

// reportPending reports the pending lines of known GPUs and drops lines past
// their deadline.
func (r *Reader) reportPending(ctx context.Context, now time.Time) (err error) {
	r.pending = slices.DeleteFunc(r.pending, func(p pendingLine) bool {
		e, known := r.handler.EventOf(p.line)
		if known {
			err = cmp.Or(err, r.report(ctx, p.line.refine(e), p))
			return true
		}
		if now.Before(p.deadline) {
			return false
		}
		r.log.Info("unknown GPU in the kernel log", "pci", p.line.PCI, "xid", p.line.Xid)
		return true
	})
	return err
}

func (r *Reader) report(ctx context.Context, e device.Event, p pendingLine) error {
	e.Source = Source
	if p.historical {
		drift := 5*time.Second + r.source.uptime()/10_000 // of the log's clock from the uptime
		last := r.handler.LastReported(e)
		wasReported := !last.IsZero() && !p.writtenAt.After(last.Add(drift))
		if e.Recovery == device.RecoveryNone || wasReported {
			return nil
		}
		e.Historical, e.Recovery = true, device.RecoveryChecksPass
		e.Device = "" // the instance ids may belong to a newer MIG device
	}
	return r.handler.Report(ctx, e, p.count, p.writtenAt)
}

// kernelLog is the kernel log: /dev/kmsg, or a test's.
type kernelLog interface {
	// open returns the log from its beginning. A Read returns one record, and
	// EAGAIN if there is none.
	open() (io.ReadCloser, error)
	// uptime returns the time since the boot by the clock of the records;
	// roughly, because NTP does not adjust the records' clock.
	uptime() time.Duration
}

// devKmsg is the path of a kernelLog, /dev/kmsg.
type devKmsg string

func (path devKmsg) open() (io.ReadCloser, error) {
	fd, err := unix.Open(string(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: string(path), Err: err}
	}
	return kmsgFile(fd), nil
}

func (devKmsg) uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// kmsgFile is the descriptor of an open /dev/kmsg. An os.File would wait for a
// record.
type kmsgFile int

func (f kmsgFile) Read(buf []byte) (int, error) {
	n, err := unix.Read(int(f), buf)
	if err == nil && n == 0 {
		return 0, io.EOF
	}
	return max(n, 0), os.NewSyscallError("read", err)
}

func (f kmsgFile) Close() error { return unix.Close(int(f)) }
