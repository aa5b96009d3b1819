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
	// mpsEvery is how often MPS control daemons and IMEX channels are looked at,
	// where any is used.
	mpsEvery = 2 * time.Second
	// mpsMounted is where the daemons' folder is mounted beside NVIDIA's plugin.
	mpsMounted = "/mps"
	mpsDown    = "mps_daemon"
)

// rulebook publishes the plugin's Rules, as the settings, the MPS control daemons and
// the IMEX channels of the moment make them.
type rulebook struct {
	settings looker[config.Settings]
	specs    *specs
	log      *slog.Logger
	// startable is closed once containers can be started by the rules.
	startable chan struct{}

	// All below belong to Run.
	serving  config.Settings   // that the rules are made of
	waits    error             // for these CDI specs, as logged
	down     map[string]string // why MPS cannot be used, by resource
	channels []int             // of IMEX that containers get

	mu sync.Mutex
	// All below are guarded by mu.
	rules   plugin.Rules
	changed chan struct{}
}

func newRulebook(settings looker[config.Settings], specs *specs, log *slog.Logger) *rulebook {
	b := &rulebook{settings: settings, specs: specs, log: log, startable: make(chan struct{}), changed: make(chan struct{})}
	b.follow()
	return b
}

// Gate has a Board show nothing until containers can be started: the plugin registers nothing before.
func (b *rulebook) Gate(look looker[[]device.Status]) looker[[]device.Status] {
	return func() ([]device.Status, <-chan struct{}) {
		if !isClosed(b.startable) {
			return nil, b.startable
		}
		return look()
	}
}

// Look returns the rules, and a channel that is closed when there are others.
func (b *rulebook) Look() (plugin.Rules, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rules, b.changed
}

// Run follows the settings, the daemons and the channels until ctx is done.
func (b *rulebook) Run(ctx context.Context) error {
	tick := time.NewTicker(mpsEvery)
	defer tick.Stop()
	for {
		changed, written := b.follow()
		for same := true; same; {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
				same = false
			case <-written:
				same = false
			case <-tick.C:
				channels, _ := imex(b.serving) // that one is missing is said when it is published
				same = maps.Equal(b.down, mpsDaemons(b.serving)) && slices.Equal(b.channels, channels)
			}
		}
	}
}

// follow publishes the rules of the newest settings. If these need CDI specs that are not written, the rules
// before them stand: the kubelet keeps an answer of Allocate for as long as the pod runs.
func (b *rulebook) follow() (changed, written <-chan struct{}) {
	s, changed := b.settings()
	written, missing := b.specs.Missing(s)
	settled, started := missing == nil, isClosed(b.startable)
	b.logMissing(missing)
	if settled || !started {
		b.serving = s
	}
	b.take(mpsDaemons(b.serving))
	b.publish(b.serving)
	if settled && !started {
		close(b.startable)
	}
	return changed, written
}

// logMissing logs why the rules wait, once for each reason. Specs that cannot be written are a warning.
func (b *rulebook) logMissing(missing error) {
	if missing != nil && (b.waits == nil || b.waits.Error() != missing.Error()) {
		level := slog.LevelInfo
		if devices, _ := b.specs.board(); len(devices) > 0 && !errors.Is(missing, errNotWritten) {
			level = slog.LevelWarn
		}
		b.log.Log(context.Background(), level, "registration, or new settings, wait for CDI specs", "err", missing)
	}
	b.waits = missing
}

// Ready reports why no device is registered, if registration waits for CDI specs. A node without devices is ready.
func (b *rulebook) Ready() error {
	if isClosed(b.startable) {
		return nil
	}
	if statuses, _ := b.specs.board(); len(statuses) == 0 {
		return nil
	}
	s, _ := b.settings()
	if _, missing := b.specs.Missing(s); missing != nil {
		return fmt.Errorf("registration waits for the CDI spec of the GPUs: %w", missing)
	}
	return nil
}

// gatedPlugin is ready once its registration waits for nothing.
type gatedPlugin struct {
	*plugin.Plugin
	rules *rulebook
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

// take keeps what the daemons do, and says what is new of it.
func (b *rulebook) take(down map[string]string) {
	for resource, why := range down {
		if b.down[resource] != why {
			b.log.Warn("nobody serves what is shared through MPS", "resource", resource, "err", why)
		}
	}
	for resource := range b.down {
		if down[resource] == "" {
			b.log.Info("what is shared through MPS is served again", "resource", resource)
		}
	}
	b.down = down
}

// publish makes the rules anew.
func (b *rulebook) publish(s config.Settings) {
	channels, err := imex(s)
	if err != nil { // at start it was an error; the file may ask for it later
		b.log.Error("pass on IMEX channels", "err", err)
	}
	b.channels = channels
	r := rules(s, b.specs.HasSpec, channels)
	down := b.down
	r.Down = func(resource string) string {
		if down[resource] != "" {
			return mpsDown
		}
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rules = r
	close(b.changed)
	b.changed = make(chan struct{})
}

// mpsDaemons says, by resource, why the control daemon of what is shared through MPS
// does not answer.
func mpsDaemons(s config.Settings) map[string]string {
	down := map[string]string{}
	root := s.MPSRoot
	if _, err := os.Stat(mpsMounted); err == nil {
		root = mpsMounted
	}
	for _, r := range s.Sharing.MPS.Resources {
		resource := cmp.Or(r.Rename, r.Name)
		if err := plugin.MPSDaemon(filepath.Join(root, resource, "pipe")); err != nil {
			down[resource] = err.Error()
		}
	}
	return down
}
