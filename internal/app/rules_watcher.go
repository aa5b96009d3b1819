package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

const (
	// mpsInterval is how often MPS control daemons and IMEX channels are looked at,
	// where any is used.
	mpsInterval = 2 * time.Second
	// mpsMountedRoot is where the daemons' folder is mounted beside NVIDIA's plugin.
	mpsMountedRoot = "/mps"
	reasonMPSDown  = "mps_daemon"
)

// rulesWatcher publishes the plugin's Rules, as the settings, the MPS control daemons and
// the IMEX channels of the moment make them.
type rulesWatcher struct {
	settings valueFunc[config.Settings]
	specs    *cdiSpecs
	log      *slog.Logger
	// canStart is closed once containers can be started by the rules.
	canStart chan struct{}

	// All below belong to Run.
	active       config.Settings   // that the rules are made of
	missing      error             // for these CDI specs, as logged
	mpsErrors    map[string]string // why MPS cannot be used, by resource
	imexChannels []int             // of IMEX that containers get

	mu sync.Mutex
	// All below are guarded by mu.
	rules   plugin.Rules
	changed chan struct{}
}

func newRulesWatcher(settings valueFunc[config.Settings], specs *cdiSpecs, log *slog.Logger) *rulesWatcher {
	w := &rulesWatcher{settings: settings, specs: specs, log: log, canStart: make(chan struct{}), changed: make(chan struct{})}
	w.update()
	return w
}

// Gate has a Board show nothing until containers can be started: the plugin registers nothing before.
func (w *rulesWatcher) Gate(get valueFunc[[]device.Status]) valueFunc[[]device.Status] {
	return func() ([]device.Status, <-chan struct{}) {
		if !isClosed(w.canStart) {
			return nil, w.canStart
		}
		return get()
	}
}

// Get returns the rules, and a channel that is closed when there are others.
func (w *rulesWatcher) Get() (plugin.Rules, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rules, w.changed
}

// Run follows the settings, the daemons and the channels until ctx is done.
func (w *rulesWatcher) Run(ctx context.Context) error {
	tick := time.NewTicker(mpsInterval)
	defer tick.Stop()
	for {
		changed, written := w.update()
		for unchanged := true; unchanged; {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
				unchanged = false
			case <-written:
				unchanged = false
			case <-tick.C:
				channels, _ := imexChannels(w.active) // that one is missing is said when it is published
				unchanged = maps.Equal(w.mpsErrors, checkMPSDaemons(w.active)) && slices.Equal(w.imexChannels, channels)
			}
		}
	}
}

// update publishes the rules of the newest settings. If these need CDI specs that are not written, the rules
// before them stand: the kubelet keeps an answer of Allocate for as long as the pod runs.
func (w *rulesWatcher) update() (changed, written <-chan struct{}) {
	s, changed := w.settings()
	written, missing := w.specs.Missing(s)
	complete, started := missing == nil, isClosed(w.canStart)
	w.logMissing(missing)
	if complete || !started {
		w.active = s
	}
	w.setMPSErrors(checkMPSDaemons(w.active))
	w.publish(w.active)
	if complete && !started {
		close(w.canStart)
	}
	return changed, written
}

// logMissing logs why the rules wait, once for each reason. Specs that cannot be written are a warning.
func (w *rulesWatcher) logMissing(missing error) {
	if missing != nil && (w.missing == nil || w.missing.Error() != missing.Error()) {
		level := slog.LevelInfo
		if devices, _ := w.specs.board(); len(devices) > 0 && !errors.Is(missing, errNotWritten) {
			level = slog.LevelWarn
		}
		w.log.Log(context.Background(), level, "registration, or new settings, wait for CDI specs", "err", missing)
	}
	w.missing = missing
}

// Ready reports why no device is registered, if registration waits for CDI specs. A node without devices is ready.
func (w *rulesWatcher) Ready() error {
	if isClosed(w.canStart) {
		return nil
	}
	if statuses, _ := w.specs.board(); len(statuses) == 0 {
		return nil
	}
	s, _ := w.settings()
	if _, missing := w.specs.Missing(s); missing != nil {
		return fmt.Errorf("registration waits for the CDI spec of the GPUs: %w", missing)
	}
	return nil
}

// gatedPlugin is ready once its registration waits for nothing.
type gatedPlugin struct {
	*plugin.Plugin
	rules *rulesWatcher
}

func (g gatedPlugin) Ready() error { return cmp.Or(g.rules.Ready(), g.Plugin.Ready()) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// setMPSErrors keeps what the daemons do, and says what is new of it.
func (w *rulesWatcher) setMPSErrors(down map[string]string) {
	for resource, reason := range down {
		if w.mpsErrors[resource] != reason {
			w.log.Warn("nobody serves what is shared through MPS", "resource", resource, "err", reason)
		}
	}
	for resource := range w.mpsErrors {
		if down[resource] == "" {
			w.log.Info("what is shared through MPS is served again", "resource", resource)
		}
	}
	w.mpsErrors = down
}

// publish makes the rules anew.
func (w *rulesWatcher) publish(s config.Settings) {
	channels, err := imexChannels(s)
	if err != nil { // at start it was an error; the file may ask for it later
		w.log.Error("pass on IMEX channels", "err", err)
	}
	w.imexChannels = channels
	r := pluginRules(s, w.specs.HasSpec, channels)
	down := w.mpsErrors
	r.UnusableReason = func(resource string) string {
		if down[resource] != "" {
			return reasonMPSDown
		}
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = r
	close(w.changed)
	w.changed = make(chan struct{})
}

// checkMPSDaemons says, by resource, why the control daemon of what is shared through MPS
// does not answer.
func checkMPSDaemons(s config.Settings) map[string]string {
	down := map[string]string{}
	root := s.MPSRoot
	if _, err := os.Stat(mpsMountedRoot); err == nil {
		root = mpsMountedRoot
	}
	for _, r := range s.Sharing.MPS.Resources {
		resource := cmp.Or(r.Rename, r.Name)
		if err := plugin.CheckMPSDaemon(filepath.Join(root, resource, "pipe")); err != nil {
			down[resource] = err.Error()
		}
	}
	return down
}
