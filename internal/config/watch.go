package config

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"
)

// Watch publishes the Settings, and publishes them anew when the file, or the
// name of the config in it, has changed. It compares contents, so that it follows
// the symbolic links of a ConfigMap, and needs neither inotify nor clocks.
type Watch struct {
	builder *Builder
	log     *slog.Logger
	tick    <-chan time.Time
	again   <-chan struct{}

	// Run's own.
	source  Source
	done    sum  // of what was last taken or refused
	fresh   sum  // of what was seen once
	refused bool // what was last seen is not what is published

	mu sync.Mutex
	// All below are guarded by mu.
	settings Settings
	unknown  int // keys of the file that settings were made of
	changed  chan struct{}
}

// WatchOptions say when a Watch looks.
type WatchOptions struct {
	Tick  <-chan time.Time // nil: each second
	Again <-chan struct{}  // asks for a look at once (SIGHUP); nil: never
	Log   *slog.Logger
}

// NewWatch begins with what was loaded.
func NewWatch(b *Builder, first Loaded, o WatchOptions) *Watch {
	return &Watch{builder: b, log: o.Log, tick: o.Tick, again: o.Again, done: first.sum, settings: first.Settings, unknown: len(first.UnknownKeys)}
}

// Look returns the Settings and a channel that is closed when there are others.
func (w *Watch) Look() (Settings, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.settings, w.changed
}

// UnknownKeys returns how many keys of the accepted file are unknown.
func (w *Watch) UnknownKeys() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unknown
}

// Run watches until ctx is done. A file that is invalid or gone is said once, and
// the old settings stand.
func (w *Watch) Run(ctx context.Context) error {
	var err error
	if w.source, err = w.builder.Source(); err != nil {
		return err
	}
	tick := w.tick
	if tick == nil {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			w.look(false)
		case <-w.again:
			w.look(true)
		}
	}
}

// look reads the file. Unless told to, it takes a change only when it has seen it
// twice: a file that is written in place is seen half written, and one that is
// replaced by removing it first is seen absent.
func (w *Watch) look(atOnce bool) {
	c, err := w.source.fetch()
	seen := c.sum()
	if err != nil {
		err = fmt.Errorf("read config: %w", err)
		seen = content{data: []byte(err.Error())}.sum()
	}
	switch {
	case seen == w.done && !atOnce:
		w.fresh = seen
		return
	case seen != w.fresh && !atOnce:
		w.fresh = seen
		return
	}
	w.done, w.fresh = seen, seen
	var l Loaded
	if err == nil {
		l, err = w.builder.load(c)
	}
	if err == nil {
		err = w.checkRestart(l)
	}
	if err != nil {
		w.refused = true
		w.log.Error("config refused; the old one stands", "err", err)
		return
	}
	w.take(l)
}

// checkRestart rejects a file that moves the driver. The process has loaded the driver's library, and cannot
// exchange it: CDI specs and device nodes of the new place would be those of another driver.
func (w *Watch) checkRestart(l Loaded) error {
	settings, _ := w.Look()
	was, is := target{Settings: settings}, target{Settings: l.Settings}
	for i := range rows {
		r := &rows[i]
		if !r.restart {
			continue
		}
		a, b := reflect.ValueOf(r.into(&was)).Elem(), reflect.ValueOf(r.into(&is)).Elem()
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			continue
		}
		place := r.path
		if origin := l.Origins[r.name()]; origin != "" {
			place = origin + ": " + place
		}
		return fmt.Errorf("%s: changed from %q to %q: restart podgauge for it to take effect", place, a, b)
	}
	return nil
}

// take publishes what differs.
func (w *Watch) take(l Loaded) {
	w.mu.Lock()
	w.unknown = len(l.UnknownKeys)
	same := reflect.DeepEqual(w.settings, l.Settings)
	if !same {
		w.settings = l.Settings
		if w.changed != nil {
			close(w.changed)
			w.changed = nil
		}
	}
	w.mu.Unlock()
	switch {
	case !same:
		w.log.Info("config changed", "config", l.Config)
	case w.refused:
		w.log.Info("config is valid again, and says what holds")
	}
	w.refused = false
	l.Report(w.log)
}
