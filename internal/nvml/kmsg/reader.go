// Package kmsg reads what NVIDIA's driver says of its GPUs in the kernel's log: a second
// witness of Xids, for those of which NVML says nothing.
package kmsg

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Source is whom reports name.
const Source = "kmsg"

const (
	// resolveInterval is how often it is looked whether a GPU is known by now.
	resolveInterval = time.Second
	// reopenInterval is how long after a failure the log is opened again.
	reopenInterval = 10 * time.Second
	// listingTimeout is how long a line waits for its GPU to be listed, and maxPending is how many do.
	listingTimeout = 5 * time.Minute
	maxPending     = 256
	// maxRecordBytes is more than the kernel gives in one read (CONSOLE_EXT_LOG_MAX is 8 KiB).
	maxRecordBytes = 16 << 10
)

// Options say where the log is, and who is told.
type Options struct {
	Path string // /dev/kmsg
	// EventOf says what a line means; false while it names no GPU that is known.
	EventOf func(XidLine) (device.Event, bool)
	// Report takes each line, in their order, with the wall time of its record. It must not block.
	Report func(e device.Event, at time.Time)
	// LastReported returns when an earlier process last reported such an event; zero, or nil:
	// none has.
	LastReported func(device.Event) time.Time
	Log          *slog.Logger
}

// Reader follows the log. It begins with what is in it since the boot: no other source
// has what happened before somebody asked. But whether a GPU was reset since then the log
// does not say, unless the driver was loaded anew. So what is past condemns nobody: it has
// the GPU be checked, once for each kind of error, and what ended by itself is left alone.
// The log has records of this boot only, so each record has a time since the boot.
type Reader struct {
	options Options
	open    func(path string) (logSource, error)
	uptime  func() time.Duration // by the clock of the log's time stamps, as far as there is one

	// All below belong to Run.
	caughtUp        bool // what is past was read
	hasSequence     bool // sequence is of a record
	lastSequence    uint64
	drainedAt       time.Time // when the log was last read to its end; zero: never
	pending         []pendingLine
	resolvedAt      time.Time // when it was last looked whose GPUs are known
	overflowLogged  bool      // there was no room, and it was said
	overrunLoggedAt time.Time // when it was last said
}

// pendingLine is a line that waits for its GPU to be known.
type pendingLine struct {
	line       XidLine
	historical bool
	writtenAt  time.Time // when the record was written, as far as it can be told
	deadline   time.Time // when it is given up
}

// logSource is the log, opened. A read gives a record; errNoRecord where none is there, after
// a while if it is to wait.
type logSource interface {
	read(buf []byte, wait time.Duration) (int, error)
	wake() // ends a read that waits
	close()
}

var errNoRecord = errors.New("nothing new")

// NewReader reads nothing yet.
func NewReader(o Options) *Reader { return &Reader{options: o, open: openFile, uptime: uptime} }

// Run reads until ctx is done. Where there is no log to be read it says so once, and waits.
func (r *Reader) Run(ctx context.Context) error {
	lastError := ""
	for first := true; ctx.Err() == nil; first = false {
		opened, err := r.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case first && !opened && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
			r.options.Log.Info("the kernel's log is not read; Xids are those that NVML tells", "err", err)
			<-ctx.Done()
			return nil
		case err.Error() != lastError:
			lastError = err.Error()
			r.options.Log.Warn("read the kernel's log; will go on trying", "err", err)
		}
		timer := time.NewTimer(reopenInterval)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// follow reads the log until that fails, or ctx is done.
func (r *Reader) follow(ctx context.Context) (opened bool, err error) {
	s, err := r.open(r.options.Path)
	if err != nil {
		return false, err
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.wake)()
	buf := make([]byte, maxRecordBytes)
	for ctx.Err() == nil {
		wait := resolveInterval
		if !r.caughtUp {
			wait = 0
		}
		n, err := s.read(buf, wait)
		now := time.Now()
		switch {
		case errors.Is(err, errNoRecord):
			r.caughtUp, r.drainedAt = true, now
		case errors.Is(err, syscall.EPIPE): // the next read gives the oldest that there is
			r.logOverrun(now)
		case err != nil:
			return true, err
		case r.handleRecord(buf[:n], now):
			r.resolvedAt = time.Time{}
		}
		if r.caughtUp && now.Sub(r.resolvedAt) >= resolveInterval {
			r.resolvePending(now)
		}
	}
	return true, nil
}

func (r *Reader) logOverrun(now time.Time) {
	if now.Sub(r.overrunLoggedAt) >= time.Minute {
		r.overrunLoggedAt = now
		r.options.Log.Warn("the kernel's log was written faster than it could be read: lines are missing")
	}
}

// handleRecord takes what a read gave, and tells whether it was about an Xid. A log that was opened
// again is read from its beginning.
func (r *Reader) handleRecord(data []byte, now time.Time) bool {
	rec, ok := parseRecord(data)
	if !ok || r.hasSequence && rec.sequence <= r.lastSequence {
		return false
	}
	r.hasSequence, r.lastSequence = true, rec.sequence
	if strings.HasPrefix(rec.message, driverLoadedPrefix) { // all GPUs began anew
		clear(r.pending)
		r.pending = r.pending[:0]
		return false
	}
	line, isXid := ParseXidLine(rec.message)
	if isXid {
		r.enqueue(pendingLine{line, !r.caughtUp, r.recordTime(rec, now), now.Add(listingTimeout)})
	}
	return isXid
}

// recordTime returns the wall time at which a record was written. The log's clock is not
// corrected by NTP as the uptime's is: it may drift from that by a ten-thousandth. So a
// record is never newer than now, nor older than the last end of the log.
func (r *Reader) recordTime(rec logRecord, now time.Time) time.Time {
	at := now.Add(rec.uptime - r.uptime())
	if at.After(now) {
		return now
	}
	if at.Before(r.drainedAt) {
		return r.drainedAt
	}
	return at
}

// driverLoadedPrefix is how the line begins with which the driver introduces itself.
const driverLoadedPrefix = "NVRM: loading NVIDIA UNIX"

// enqueue has a line wait. Of those that are past the newest of a kind is enough.
func (r *Reader) enqueue(p pendingLine) {
	for i := range r.pending {
		if w := &r.pending[i]; p.historical && w.historical && w.line == p.line {
			*w = p
			return
		}
	}
	if len(r.pending) >= maxPending {
		if !r.overflowLogged {
			r.options.Log.Warn("the kernel's log tells of more errors of unknown GPUs than are kept")
		}
		r.overflowLogged = true
		return
	}
	r.pending = append(r.pending, p)
}

// resolvePending reports the lines whose GPUs are known.
func (r *Reader) resolvePending(now time.Time) {
	r.resolvedAt = now
	kept := r.pending[:0]
	for _, p := range r.pending {
		e, known := r.options.EventOf(p.line)
		switch {
		case known:
			r.report(e, p, now)
		case now.Before(p.deadline):
			kept = append(kept, p)
		default:
			r.options.Log.Info("the kernel's log tells of an error of a GPU that is not known", "pci", p.line.PCI, "xid", p.line.Xid)
		}
	}
	clear(r.pending[len(kept):])
	r.pending = kept
}

func (r *Reader) report(e device.Event, p pendingLine, now time.Time) {
	e.Source = Source
	if p.historical {
		if e.Recovery == device.RecoveryNone || r.alreadyReported(e, p) {
			return
		}
		e.Historical, e.Recovery = true, device.RecoveryChecksPass
		e.Device = "" // the numbers of its instances may be another slice's by now
	}
	r.options.Report(e, p.writtenAt)
}

// alreadyReported reports whether an earlier process has reported what is past, within the drift
// of the log's clock (see written).
func (r *Reader) alreadyReported(e device.Event, p pendingLine) bool {
	if r.options.LastReported == nil {
		return false
	}
	last := r.options.LastReported(e)
	return !last.IsZero() && !p.writtenAt.After(last.Add(5*time.Second+r.uptime()/10_000))
}
