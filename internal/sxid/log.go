package sxid

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
)

// maxKinds bounds the kinds of errors of a node. An NVSwitch rarely has more
// than five, and a node at most twelve NVSwitches.
const maxKinds = 256

// Log counts the errors of a node's NVSwitches since the start of this process,
// and has the newest since the driver was loaded.
type Log struct {
	log     *slog.Logger
	limiter *loglimit.Limiter[string]

	mu    sync.Mutex
	kinds map[string]*kind // by PCI address, number and severity; guarded by mu
	full  bool             // maxKinds was exceeded, and logged; guarded by mu
}

// kind is a number and severity of one NVSwitch.
type kind struct {
	count uint64
	last  time.Time // zero: not since the driver was loaded
	link  int
}

// NewLog returns an empty Log.
func NewLog(log *slog.Logger) *Log {
	return &Log{log: log, limiter: loglimit.New[string](time.Minute), kinds: map[string]*kind{}}
}

// Record adds an error at a time. A historical error is from before the start of
// this process, and not counted.
func (l *Log) Record(e Line, at time.Time, historical bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprintf("%s,%d,%s", e.PCI, e.Number, e.Severity)
	k := l.kinds[key]
	if k == nil {
		if len(l.kinds) >= maxKinds {
			if !l.full {
				l.log.Warn("too many kinds of NVSwitch errors, new kinds are not counted", "limit", maxKinds)
			}
			l.full = true
			return
		}
		k = &kind{}
		l.kinds[key] = k
	}
	k.last, k.link = at, e.Link
	if historical {
		return
	}
	k.count++
	if l.limiter.Allow(key, at) {
		l.log.Warn("NVSwitch error", "pci", e.PCI, "sxid", e.Number, "severity", e.Severity.String(), "link", e.Link,
			"name", Name(e.Number), "count", k.count)
	}
}

// OnDriverLoaded ends all errors: the driver resets the NVSwitches.
func (l *Log) OnDriverLoaded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kinds {
		k.last = time.Time{}
	}
}

// Counts returns the number of errors by NVSwitch, number and severity, joined
// by commas.
func (l *Log) Counts() map[string]float64 {
	return l.values(func(k *kind) (float64, bool) { return float64(k.count), true })
}

// LastTimes returns the Unix times of the newest errors, as Counts.
func (l *Log) LastTimes() map[string]float64 {
	return l.values(func(k *kind) (float64, bool) { return float64(k.last.UnixMilli()) / 1000, !k.last.IsZero() })
}

// LastLinks returns the links of the newest errors, as Counts.
func (l *Log) LastLinks() map[string]float64 {
	return l.values(func(k *kind) (float64, bool) { return float64(k.link), !k.last.IsZero() && k.link != NoLink })
}

func (l *Log) values(value func(*kind) (float64, bool)) map[string]float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := map[string]float64{}
	for key, k := range l.kinds {
		if v, ok := value(k); ok {
			values[key] = v
		}
	}
	return values
}
