package config

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"
)

// Watcher publishes the Settings, and publishes them anew when the file, or the
// name of the config in it, has changed. It compares contents, so that it follows
// the symbolic links of a ConfigMap, and needs neither inotify nor clocks.
type Watcher struct {
	builder *Builder
	log     *slog.Logger
	tick    <-chan time.Time
	reload  <-chan struct{}

	// Run's own.
	location    FileLocation
	lastHandled digest // of what was last taken or refused
	lastSeen    digest // of what was seen once
	rejected    bool   // what was last seen is not what is published

	mu sync.Mutex
	// All below are guarded by mu.
	settings    Settings
	unknownKeys int // keys of the file that settings were made of
	changed     chan struct{}
}

// WatcherOptions say when a Watch looks.
type WatcherOptions struct {
	Tick   <-chan time.Time // nil: each second
	Reload <-chan struct{}  // asks for a look at once (SIGHUP); nil: never
	Log    *slog.Logger
}

// NewWatcher begins with what was loaded.
func NewWatcher(b *Builder, first Loaded, o WatcherOptions) *Watcher {
	return &Watcher{builder: b, log: o.Log, tick: o.Tick, reload: o.Reload, lastHandled: first.digest, settings: first.Settings, unknownKeys: len(first.UnknownKeys)}
}

// Get returns the Settings and a channel that is closed when there are others.
func (w *Watcher) Get() (Settings, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.settings, w.changed
}

// UnknownKeys returns how many keys of the accepted file are unknown.
func (w *Watcher) UnknownKeys() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unknownKeys
}

// Run watches until ctx is done. A file that is invalid or gone is said once, and
// the old settings stand.
func (w *Watcher) Run(ctx context.Context) error {
	var err error
	if w.location, err = w.builder.Location(); err != nil {
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
			w.poll(false)
		case <-w.reload:
			w.poll(true)
		}
	}
}

// poll reads the file. Unless told to, it takes a change only when it has seen it
// twice: a file that is written in place is seen half written, and one that is
// replaced by removing it first is seen absent.
func (w *Watcher) poll(immediate bool) {
	c, err := w.location.read()
	current := c.digest()
	if err != nil {
		err = fmt.Errorf("read config: %w", err)
		current = rawConfig{data: []byte(err.Error())}.digest()
	}
	switch {
	case current == w.lastHandled && !immediate:
		w.lastSeen = current
		return
	case current != w.lastSeen && !immediate:
		w.lastSeen = current
		return
	}
	w.lastHandled, w.lastSeen = current, current
	var l Loaded
	if err == nil {
		l, err = w.builder.load(c)
	}
	if err == nil {
		err = w.checkRestart(l)
	}
	if err != nil {
		w.rejected = true
		w.log.Error("config refused; the old one stands", "err", err)
		return
	}
	w.publish(l)
}

// checkRestart rejects a file that moves the driver. The process has loaded the driver's library, and cannot
// exchange it: CDI specs and device nodes of the new place would be those of another driver.
func (w *Watcher) checkRestart(l Loaded) error {
	settings, _ := w.Get()
	before, after := loadState{Settings: settings}, loadState{Settings: l.Settings}
	for i := range allSettings {
		s := &allSettings[i]
		if !s.needsRestart {
			continue
		}
		a, b := reflect.ValueOf(s.field(&before)).Elem(), reflect.ValueOf(s.field(&after)).Elem()
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			continue
		}
		place := s.path
		if origin := l.Origins[s.name()]; origin != "" {
			place = origin + ": " + place
		}
		return fmt.Errorf("%s: changed from %q to %q: restart podgauge for it to take effect", place, a, b)
	}
	return nil
}

// publish publishes what differs.
func (w *Watcher) publish(l Loaded) {
	w.mu.Lock()
	w.unknownKeys = len(l.UnknownKeys)
	unchanged := reflect.DeepEqual(w.settings, l.Settings)
	if !unchanged {
		w.settings = l.Settings
		if w.changed != nil {
			close(w.changed)
			w.changed = nil
		}
	}
	w.mu.Unlock()
	switch {
	case !unchanged:
		w.log.Info("config changed", "config", l.Config)
	case w.rejected:
		w.log.Info("config is valid again, and says what holds")
	}
	w.rejected = false
	l.Report(w.log)
}
