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

// Witness is whom reports name.
const Witness = "kmsg"

const (
	// wakeEvery is how often it is looked whether a GPU is known by now.
	wakeEvery = time.Second
	// againAfter is how long after a failure the log is opened again.
	againAfter = 10 * time.Second
	// knownBy is how long a line waits for its GPU to be listed, and mostWaiting is how many do.
	knownBy     = 5 * time.Minute
	mostWaiting = 256
	// mostRecord is more than the kernel gives in one read (CONSOLE_EXT_LOG_MAX is 8 KiB).
	mostRecord = 16 << 10
)

// Options say where the log is, and who is told.
type Options struct {
	Path string // /dev/kmsg
	// Event says what a line means; false while it names no GPU that is known.
	Event func(Line) (device.Event, bool)
	// Report takes each line, in their order, with the wall time of its record. It must not block.
	Report func(e device.Event, at time.Time)
	// Remembered returns when an earlier process last reported such an event; zero, or nil:
	// none has.
	Remembered func(device.Event) time.Time
	Log        *slog.Logger
}

// Reader follows the log. It begins with what is in it since the boot: no other source
// has what happened before somebody asked. But whether a GPU was reset since then the log
// does not say, unless the driver was loaded anew. So what is past condemns nobody: it has
// the GPU be checked, once for each kind of error, and what ended by itself is left alone.
// The log has records of this boot only, so each record has a time since the boot.
type Reader struct {
	options Options
	open    func(path string) (source, error)
	uptime  func() time.Duration // by the clock of the log's time stamps, as far as there is one

	// All below belong to Run.
	begun   bool // what is past was read
	any     bool // sequence is of a record
	newest  uint64
	emptyAt time.Time // when the log was last read to its end; zero: never
	waiting []told
	settled time.Time // when it was last looked whose GPUs are known
	lost    bool      // there was no room, and it was said
	overrun time.Time // when it was last said
}

// told is a line that waits for its GPU to be known.
type told struct {
	line  Line
	past  bool
	at    time.Time // when the record was written, as far as it can be told
	until time.Time // when it is given up
}

// source is the log, opened. A read gives a record; errNothing where none is there, after
// a while if it is to wait.
type source interface {
	read(buf []byte, wait time.Duration) (int, error)
	wake() // ends a read that waits
	close()
}

var errNothing = errors.New("nothing new")

// NewReader reads nothing yet.
func NewReader(o Options) *Reader { return &Reader{options: o, open: openFile, uptime: uptime} }

// Run reads until ctx is done. Where there is no log to be read it says so once, and waits.
func (r *Reader) Run(ctx context.Context) error {
	said := ""
	for first := true; ctx.Err() == nil; first = false {
		opened, err := r.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case first && !opened && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
			r.options.Log.Info("the kernel's log is not read; Xids are those that NVML tells", "err", err)
			<-ctx.Done()
			return nil
		case err.Error() != said:
			said = err.Error()
			r.options.Log.Warn("read the kernel's log; will go on trying", "err", err)
		}
		again := time.NewTimer(againAfter)
		select {
		case <-ctx.Done():
		case <-again.C:
		}
		again.Stop()
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
	buf := make([]byte, mostRecord)
	for ctx.Err() == nil {
		wait := wakeEvery
		if !r.begun {
			wait = 0
		}
		n, err := s.read(buf, wait)
		now := time.Now()
		switch {
		case errors.Is(err, errNothing):
			r.begun, r.emptyAt = true, now
		case errors.Is(err, syscall.EPIPE): // the next read gives the oldest that there is
			r.missed(now)
		case err != nil:
			return true, err
		case r.take(buf[:n], now):
			r.settled = time.Time{}
		}
		if r.begun && now.Sub(r.settled) >= wakeEvery {
			r.settle(now)
		}
	}
	return true, nil
}

func (r *Reader) missed(now time.Time) {
	if now.Sub(r.overrun) >= time.Minute {
		r.overrun = now
		r.options.Log.Warn("the kernel's log was written faster than it could be read: lines are missing")
	}
}

// take takes what a read gave, and tells whether it was about an Xid. A log that was opened
// again is read from its beginning.
func (r *Reader) take(data []byte, now time.Time) bool {
	rec, ok := parseRecord(data)
	if !ok || r.any && rec.sequence <= r.newest {
		return false
	}
	r.any, r.newest = true, rec.sequence
	if strings.HasPrefix(rec.message, loaded) { // all GPUs began anew
		clear(r.waiting)
		r.waiting = r.waiting[:0]
		return false
	}
	line, is := Parse(rec.message)
	if is {
		r.put(told{line, !r.begun, r.written(rec, now), now.Add(knownBy)})
	}
	return is
}

// written returns the wall time at which a record was written. The log's clock is not
// corrected by NTP as the uptime's is: it may drift from that by a ten-thousandth. So a
// record is never newer than now, nor older than the last end of the log.
func (r *Reader) written(rec record, now time.Time) time.Time {
	at := now.Add(rec.since - r.uptime())
	if at.After(now) {
		return now
	}
	if at.Before(r.emptyAt) {
		return r.emptyAt
	}
	return at
}

// loaded is how the line begins with which the driver introduces itself.
const loaded = "NVRM: loading NVIDIA UNIX"

// put has a line wait. Of those that are past the newest of a kind is enough.
func (r *Reader) put(t told) {
	for i := range r.waiting {
		if w := &r.waiting[i]; t.past && w.past && w.line == t.line {
			*w = t
			return
		}
	}
	if len(r.waiting) >= mostWaiting {
		if !r.lost {
			r.options.Log.Warn("the kernel's log tells of more errors of unknown GPUs than are kept")
		}
		r.lost = true
		return
	}
	r.waiting = append(r.waiting, t)
}

// settle reports the lines whose GPUs are known.
func (r *Reader) settle(now time.Time) {
	r.settled = now
	kept := r.waiting[:0]
	for _, t := range r.waiting {
		e, known := r.options.Event(t.line)
		switch {
		case known:
			r.report(e, t, now)
		case now.Before(t.until):
			kept = append(kept, t)
		default:
			r.options.Log.Info("the kernel's log tells of an error of a GPU that is not known", "pci", t.line.PCI, "xid", t.line.Xid)
		}
	}
	clear(r.waiting[len(kept):])
	r.waiting = kept
}

func (r *Reader) report(e device.Event, t told, now time.Time) {
	e.Witness = Witness
	if t.past {
		if e.Heals == device.ByItself || r.remembered(e, t) {
			return
		}
		e.Past, e.Heals = true, device.ByCheck
		e.Device = "" // the numbers of its instances may be another slice's by now
	}
	r.options.Report(e, t.at)
}

// remembered reports whether an earlier process has reported what is past, within the drift
// of the log's clock (see written).
func (r *Reader) remembered(e device.Event, t told) bool {
	if r.options.Remembered == nil {
		return false
	}
	last := r.options.Remembered(e)
	return !last.IsZero() && !t.at.After(last.Add(5*time.Second+r.uptime()/10_000))
}
