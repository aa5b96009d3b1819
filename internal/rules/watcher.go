// Package rules derives the rules of the device plugin from the settings, the
// MPS control daemons, the IMEX channels and the CDI specs, which it writes.
package rules

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/response"
)

const (
	// mpsInterval is the interval between checks of MPS control daemons and
	// IMEX channels.
	mpsInterval = 2 * time.Second
	// mpsMountedRoot is the mount of the daemons' folder in the pod of NVIDIA's
	// plugin.
	mpsMountedRoot = "/mps"
)

// Publisher publishes the plugin's Rules, made of the settings, the MPS
// control daemons and the IMEX channels.
type Publisher struct {
	settings *pubsub.Value[config.Settings]
	specs    *CDISpecs
	rules    *pubsub.Value[plugin.Rules]
	log      *slog.Logger

	// Fields of Run.
	started bool            // containers can start by the rules
	active  config.Settings // of the published rules
	node    polledState     // likewise
}

// polledState is the part of the rules that is read from the node: MPS control
// daemons and IMEX channels.
type polledState struct {
	mpsErrors    map[string]string // by resource
	imexChannels []int
	imexError    string // a later file may require a missing channel
}

// NewPublisher returns a Publisher that has published the first rules.
func NewPublisher(
	settings *pubsub.Value[config.Settings], specs *CDISpecs, rules *pubsub.Value[plugin.Rules], log *slog.Logger,
) *Publisher {
	w := &Publisher{settings: settings, specs: specs, rules: rules, log: log}
	w.update()
	return w
}

// Run follows the settings, the daemons and the channels until ctx is done.
func (w *Publisher) Run(ctx context.Context) error {
	changed, written := w.update()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-written:
		case <-time.After(retry.Aligned(mpsInterval)):
			if reflect.DeepEqual(w.node, poll(w.active)) {
				continue
			}
		}
		changed, written = w.update()
	}
}

// update publishes the rules of the newest settings. Rules stay as they are
// while the CDI specs of newer settings are missing: the kubelet keeps a
// response to Allocate as long as the pod runs.
func (w *Publisher) update() (changed, written <-chan struct{}) {
	s, changed := w.settings.Get()
	written, missing := w.specs.Missing(s)
	if missing == nil || !w.started {
		w.active = s
	}
	w.started = w.started || missing == nil
	before := w.node
	w.node = poll(w.active)
	if !maps.Equal(w.node.mpsErrors, before.mpsErrors) {
		w.log.Warn("MPS control daemons changed", "down", w.node.mpsErrors)
	}
	if w.node.imexError != "" && w.node.imexError != before.imexError {
		w.log.Error("cannot find IMEX channels", "err", w.node.imexError)
	}
	rules := pluginRules(w.active, w.specs.HasSpec, w.node)
	if !w.started {
		rules.NotReady = fmt.Errorf("registration waits for the CDI spec of the GPUs: %w", missing)
	}
	w.rules.Set(rules)
	return changed, written
}

// poll checks the control daemons, and finds the channels.
func poll(s config.Settings) polledState {
	root := s.MPSRoot
	if _, err := os.Stat(mpsMountedRoot); err == nil {
		root = mpsMountedRoot
	}
	n := polledState{mpsErrors: map[string]string{}}
	for _, r := range s.Sharing.MPS.Resources {
		resource := cmp.Or(r.Rename, r.Name)
		if err := plugin.CheckMPSDaemon(filepath.Join(root, resource, "pipe")); err != nil {
			n.mpsErrors[resource] = err.Error()
		}
	}
	var err error
	if n.imexChannels, err = IMEXChannels(s); err != nil {
		n.imexError = err.Error()
	}
	return n
}

// Preview returns the Rules of the settings for a node with IMEX channels, on
// which MPS control daemons answer and no CDI spec is written.
func Preview(s config.Settings, imexChannels []int) plugin.Rules {
	return pluginRules(s, nil, polledState{imexChannels: imexChannels})
}

// pluginRules returns the Rules of the settings. hasSpec reports whether a CDI
// class has a spec.
func pluginRules(s config.Settings, hasSpec func(class string) bool, node polledState) plugin.Rules {
	options := response.Options{
		Strategies: s.DeviceListStrategy, IDStrategy: s.DeviceIDStrategy,
		DeviceSpecs: s.PassDeviceSpecs, DevRoot: s.DevRoot, HasCDISpec: hasSpec,
		AnnotationPrefix: s.CDIAnnotationPrefix, GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED,
		IMEXChannels: node.imexChannels,
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
