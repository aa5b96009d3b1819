package config

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// Watcher publishes the Settings, and new Settings after a change of the file
// or the config's name. The watcher compares contents, and so follows the
// symbolic links of a ConfigMap without inotify.
type Watcher struct {
	builder  *Builder
	location FileLocation
	o        WatcherOptions

	file followedContent[rawConfig] // of Run

	unknownKeys atomic.Int64 // of the accepted file
}

// WatcherOptions are the trigger, output and log of a Watcher.
type WatcherOptions struct {
	Settings *pubsub.Value[Settings]
	Reload   <-chan os.Signal // forces a read (SIGHUP); nil: never
	Log      *slog.Logger
}

// NewWatcher returns a Watcher of the loaded settings.
func NewWatcher(b *Builder, first Loaded, o WatcherOptions) *Watcher {
	w := &Watcher{builder: b, location: first.location, o: o}
	w.file.handled = first.raw
	o.Settings.Set(first.Settings)
	w.unknownKeys.Store(int64(len(first.UnknownKeys)))
	return w
}

// UnknownKeys returns the number of unknown keys in the accepted file.
func (w *Watcher) UnknownKeys() int { return int(w.unknownKeys.Load()) }

// Run watches until ctx is done. An invalid or missing file is logged once, and
// the previous settings stay in effect.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry.Aligned(time.Second)):
			w.poll(false)
		case <-w.o.Reload:
			w.poll(true)
		}
	}
}

// poll reads the file, and publishes changed settings.
func (w *Watcher) poll(force bool) {
	current, err := w.location.read()
	if err != nil {
		err = fmt.Errorf("read config: %w", err)
		current = rawConfig{data: err.Error()}
	}
	if !w.file.changed(current, force) {
		return
	}
	var l Loaded
	if err == nil {
		l, err = w.builder.load(current)
	}
	if err == nil {
		err = w.checkRestart(l)
	}
	if err != nil {
		w.o.Log.Error("config rejected, keeping the previous settings", "err", err)
		return
	}
	w.unknownKeys.Store(int64(len(l.UnknownKeys)))
	if !reflect.DeepEqual(w.o.Settings.Newest(), l.Settings) {
		w.o.Settings.Set(l.Settings)
		w.o.Log.Info("config changed", "config", l.Config)
	}
	l.Report(w.o.Log)
}

// checkRestart rejects a file with a new driver root: the process cannot
// replace the loaded library, and new CDI specs and device nodes would belong
// to a different driver.
func (w *Watcher) checkRestart(l Loaded) error {
	roots := func(s Settings) [2]string { return [2]string{s.DriverRoot, s.ContainerDriverRoot} }
	before, after := roots(w.o.Settings.Newest()), roots(l.Settings)
	if before == after {
		return nil
	}
	return fmt.Errorf("flags.nvidiaDriverRoot, flags.plugin.containerDriverRoot: changed from %q to %q: "+
		"restart podgauge to use the new driver", before, after)
}
