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
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/plugin"
)

const (
	// mpsInterval is the interval between checks of MPS control daemons and IMEX channels.
	mpsInterval = 2 * time.Second
	// mpsMountedRoot is the mount of the daemons' folder in the pod of NVIDIA's plugin.
	mpsMountedRoot = "/mps"
	reasonMPSDown  = "mps_daemon"
)

// rulesWatcher publishes the plugin's Rules, made of the settings, the MPS control daemons and the IMEX channels.
type rulesWatcher struct {
	settings published[config.Settings]
	specs    *cdiSpecs
	log      *slog.Logger

	pubsub.Value[plugin.Rules]
	canStart chan struct{} // closed once containers can start by the rules

	// Fields of Run.
	active       config.Settings   // of the published rules
	missing      error             // reason why newer settings wait, as logged
	mpsErrors    map[string]string // by resource
	imexChannels []int
}

func newRulesWatcher(settings published[config.Settings], specs *cdiSpecs, log *slog.Logger) *rulesWatcher {
	w := &rulesWatcher{settings: settings, specs: specs, log: log, canStart: make(chan struct{})}
	w.update()
	return w
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
				channels, _ := imexChannels(w.active) // publish logs the error
				unchanged = maps.Equal(w.mpsErrors, checkMPSDaemons(w.active)) && slices.Equal(w.imexChannels, channels)
			}
		}
	}
}

// update publishes the rules of the newest settings. Rules stay as they are while the CDI specs of newer settings are missing: the
// kubelet keeps a response to Allocate as long as the pod runs.
func (w *rulesWatcher) update() (changed, written <-chan struct{}) {
	s, changed := w.settings.Get()
	written, missing := w.specs.Missing(s)
	complete, started := missing == nil, isClosed(w.canStart)
	w.logMissing(missing)
	if complete || !started {
		w.active = s
	}
	w.updateMPSErrors()
	w.publish()
	if complete && !started {
		close(w.canStart)
	}
	return changed, written
}

// logMissing logs each reason to wait once. Failed specs are a warning.
func (w *rulesWatcher) logMissing(missing error) {
	if missing != nil && (w.missing == nil || w.missing.Error() != missing.Error()) {
		level := slog.LevelInfo
		if devices, _ := w.specs.inventory.Get(); len(devices) > 0 && !errors.Is(missing, errNotWritten) {
			level = slog.LevelWarn
		}
		w.log.Log(context.Background(), level, "waiting for CDI specs", "err", missing)
	}
	w.missing = missing
}

// updateMPSErrors checks the control daemons, and logs changes.
func (w *rulesWatcher) updateMPSErrors() {
	current := checkMPSDaemons(w.active)
	for resource, reason := range current {
		if w.mpsErrors[resource] != reason {
			w.log.Warn("MPS control daemon down", "resource", resource, "err", reason)
		}
	}
	for resource := range w.mpsErrors {
		if current[resource] == "" {
			w.log.Info("MPS control daemon up", "resource", resource)
		}
	}
	w.mpsErrors = current
}

// publish publishes the rules of the active settings.
func (w *rulesWatcher) publish() {
	channels, err := imexChannels(w.active)
	if err != nil { // an error at start; a later file may ask for the channel
		w.log.Error("find IMEX channels", "err", err)
	}
	w.imexChannels = channels
	r := pluginRules(w.active, w.specs.HasSpec, channels)
	mpsErrors := w.mpsErrors
	r.UnusableReason = func(resource string) string {
		if mpsErrors[resource] != "" {
			return reasonMPSDown
		}
		return ""
	}
	w.Set(r)
}

// Ready returns the reason why no device is registered, if registration waits for CDI specs. A node without devices is ready.
func (w *rulesWatcher) Ready() error {
	if isClosed(w.canStart) {
		return nil
	}
	if statuses, _ := w.specs.inventory.Get(); len(statuses) == 0 {
		return nil
	}
	s, _ := w.settings.Get()
	if _, missing := w.specs.Missing(s); missing != nil {
		return fmt.Errorf("registration waits for the CDI spec of the GPUs: %w", missing)
	}
	return nil
}

// gatedPlugin is ready if registration does not wait.
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

// checkMPSDaemons returns the errors of the MPS control daemons, by resource.
func checkMPSDaemons(s config.Settings) map[string]string {
	root := s.MPSRoot
	if _, err := os.Stat(mpsMountedRoot); err == nil {
		root = mpsMountedRoot
	}
	down := map[string]string{}
	for _, r := range s.Sharing.MPS.Resources {
		resource := cmp.Or(r.Rename, r.Name)
		if err := plugin.CheckMPSDaemon(filepath.Join(root, resource, "pipe")); err != nil {
			down[resource] = err.Error()
		}
	}
	return down
}
