package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/response"
)

const (
	// mpsInterval is the interval between checks of MPS control daemons and IMEX channels.
	mpsInterval = 2 * time.Second
	// mpsMountedRoot is the mount of the daemons' folder in the pod of NVIDIA's plugin.
	mpsMountedRoot = "/mps"
)

// rulesWatcher publishes the plugin's Rules, made of the settings, the MPS control daemons and the IMEX channels.
type rulesWatcher struct {
	settings published[config.Settings]
	specs    *cdiSpecs
	log      *slog.Logger

	pubsub.Value[plugin.Rules]
	canStart chan struct{} // closed once containers can start by the rules

	// Fields of Run.
	active config.Settings // of the published rules
	node   daemonState     // likewise
}

// daemonState is the part of the rules that is read from the node: MPS control daemons and IMEX channels.
type daemonState struct {
	mpsErrors    map[string]string // by resource
	imexChannels []int
	imexError    string // a later file may require a missing channel
}

func newRulesWatcher(settings published[config.Settings], specs *cdiSpecs, log *slog.Logger) *rulesWatcher {
	w := &rulesWatcher{settings: settings, specs: specs, log: log, canStart: make(chan struct{})}
	w.update()
	return w
}

// Run follows the settings, the daemons and the channels until ctx is done.
func (w *rulesWatcher) Run(ctx context.Context) error {
	changed, written := w.update()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-written:
		case <-time.After(retry.Aligned(mpsInterval)):
			if reflect.DeepEqual(w.node, readDaemonState(w.active)) {
				continue
			}
		}
		changed, written = w.update()
	}
}

// update publishes the rules of the newest settings. Rules stay as they are while the CDI specs of newer settings are missing: the
// kubelet keeps a response to Allocate as long as the pod runs.
func (w *rulesWatcher) update() (changed, written <-chan struct{}) {
	s, changed := w.settings.Get()
	written, missing := w.specs.Missing(s)
	complete, started := missing == nil, pubsub.IsClosed(w.canStart)
	if complete || !started {
		w.active = s
	}
	before := w.node
	w.node = readDaemonState(w.active)
	if !maps.Equal(w.node.mpsErrors, before.mpsErrors) {
		w.log.Warn("MPS control daemons changed", "down", w.node.mpsErrors)
	}
	if w.node.imexError != "" && w.node.imexError != before.imexError {
		w.log.Error("cannot find IMEX channels", "err", w.node.imexError)
	}
	w.Set(pluginRules(w.active, w.specs.HasSpec, w.node))
	if complete && !started {
		close(w.canStart)
	}
	return changed, written
}

// Ready returns the reason why no device is registered, if registration waits for CDI specs. A node without devices is ready.
func (w *rulesWatcher) Ready() error {
	if pubsub.IsClosed(w.canStart) {
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

// readDaemonState checks the control daemons, and finds the channels.
func readDaemonState(s config.Settings) daemonState {
	root := s.MPSRoot
	if _, err := os.Stat(mpsMountedRoot); err == nil {
		root = mpsMountedRoot
	}
	n := daemonState{mpsErrors: map[string]string{}}
	for _, r := range s.Sharing.MPS.Resources {
		resource := cmp.Or(r.Rename, r.Name)
		if err := plugin.CheckMPSDaemon(filepath.Join(root, resource, "pipe")); err != nil {
			n.mpsErrors[resource] = err.Error()
		}
	}
	var err error
	if n.imexChannels, err = imexChannels(s); err != nil {
		n.imexError = err.Error()
	}
	return n
}

// pluginRules returns the Rules of the settings. hasSpec reports whether a CDI class has a spec.
func pluginRules(s config.Settings, hasSpec func(class string) bool, node daemonState) plugin.Rules {
	options := response.Options{
		Strategies: s.DeviceListStrategy, IDStrategy: s.DeviceIDStrategy,
		DeviceSpecs: s.PassDeviceSpecs, DevRoot: s.DevRoot, HasCDISpec: hasSpec,
		AnnotationPrefix: s.CDIAnnotationPrefix, GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: node.imexChannels,
	}
	if len(s.Sharing.MPS.Resources) > 0 { // so all replicas are shared through MPS
		options.MPSRoot = s.MPSRoot
	}
	return plugin.Rules{
		MIGStrategy: s.MIGStrategy, Resources: s.Resources, Select: s.DeviceFilter.Allows,
		Sharing: s.Sharing.Active().DeviceSharings, MPSErrors: node.mpsErrors, Response: options,
		Policy:        s.AllocationPolicy,
		PreStartCheck: s.PreStartCheck, ReserveClaimed: s.Claims.ReserveDevices,
	}
}

// usesMPS reports whether a resource is shared through MPS.
func usesMPS(s config.SharingConfig, resource string) bool {
	return slices.ContainsFunc(s.MPS.Resources, func(r config.SharedResource) bool {
		return resource == r.Rename || r.Rename == "" && resource == r.Name
	})
}
