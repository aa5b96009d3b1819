package app

import (
	"context"
	"log/slog"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
)

// app is the process: components and shared state.
type app struct {
	o   options
	nb  *nodeBackend
	log *slog.Logger

	registry      *prometheus.Registry
	selfMetrics   *exporter.SelfMetrics
	inventory     *device.Inventory
	configWatcher *config.Watcher
	readers       *device.Readers
	podResources  *podresources.Client
	pods          *pods.Client
	state         *state.HealthFile // nil without --state-dir
	incidents     *incident.Log
	monitor       *device.Monitor
	metrics       *exporter.Exporter
	rules         *rulesWatcher // nil with --device-plugin=false
	registrations registrationTracker

	components map[string]component
	tasks      []func(context.Context) error // tasks without health checks
}

// component is a task with health checks.
type component interface {
	Run(ctx context.Context) error
	Alive() error
	Ready() error
}
