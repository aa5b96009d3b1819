package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
)

// What is shared through MPS can be used while its daemon answers.
func TestRulesFollowTheMPSDaemon(t *testing.T) {
	root := t.TempDir()
	settings := config.Settings{
		MPSRoot: root, MIGStrategy: config.MIGNone,
		Sharing: config.Sharing{MPS: config.Shared{Resources: []config.SharedResource{{Name: resource, Devices: config.Devices{All: true}, Replicas: 2}}}},
	}
	never := make(chan struct{})
	b := newRulebook(func() (config.Settings, <-chan struct{}) { return settings, never }, &specs{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	down := func(want string) {
		t.Helper()
		until(t, fmt.Sprintf("the resource is down (%q)", want), func() bool {
			rules, _ := b.Look()
			return rules.Down(resource) == want
		})
	}
	down(mpsDown)
	pipes := filepath.Join(root, resource, "pipe")
	if err := os.MkdirAll(pipes, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(pipes, "control"), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon, err := os.OpenFile(filepath.Join(pipes, "control"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	down("")
	daemon.Close() //nolint:errcheck // a test's
	down(mpsDown)
	rules, _ := b.Look()
	if offers, _ := rules.Preview(machineOf("T4")); len(offers) != 1 || len(offers[0].IDs) != 2 {
		t.Errorf("offered are %v", offers)
	}
	if o := rules.Answer(resource); o.MPSRoot != root {
		t.Errorf("containers get %q", o.MPSRoot)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
