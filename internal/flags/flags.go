// Package flags has the command line of the daemon.
package flags

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/server"
	"github.com/spf13/pflag"
)

// LookupEnv finds an environment variable, as os.LookupEnv does.
type LookupEnv func(name string) (value string, set bool)

// Options are the flags of the daemon, and what follows from flags, environment
// and config.
type Options struct {
	Web     server.Options
	Metrics Metrics
	Health  Health

	log                         cli.LogOptions
	KubeletDir, DevicePluginDir string
	PodLogsDir                  string
	PodsAPIFallbackSocket       string
	IgnoreClaimsFile            string
	DevicePlugin, TakeOver      bool
	Version                     bool

	LookupEnv LookupEnv
	Hostname  string // of the node
	OwnPod    string // podgauge's pod, if a pod of the API server

	Builder   *config.Builder
	Loaded    config.Loaded // at start
	ConfigErr error         // of an invalid config, for doctor
}

// New returns the options of a command line without flags.
func New(lookupEnv LookupEnv) *Options {
	o := &Options{LookupEnv: lookupEnv, Builder: config.NewBuilder(lookupEnv), Hostname: hostname(lookupEnv)}
	if pod, _ := lookupEnv("POD_NAME"); !isStaticPod(pod, o.Hostname) {
		o.OwnPod = pod
	}
	return o
}

// hostname returns the node's name as dcgm-exporter does: NODE_NAME, set by a
// DaemonSet, or the machine's name. In a pod, the latter is the pod's name.
func hostname(lookupEnv LookupEnv) string {
	name, _ := lookupEnv("NODE_NAME")
	machine, _ := os.Hostname() // empty after an error
	return cmp.Or(name, machine)
}

// isStaticPod reports whether the name of a pod ends with the node's name, as
// the kubelet names static pods (generatePodName in
// pkg/kubelet/config/common.go).
func isStaticPod(pod, node string) bool { return strings.HasSuffix(pod, "-"+strings.ToLower(node)) }

// AddFlags declares the flags of the daemon and its platform.
// docs/reference/flags.md is generated from the flags.
func (o *Options) AddFlags(f *pflag.FlagSet, addPlatformFlags func(*pflag.FlagSet)) {
	f.SortFlags = false
	o.Web.AddFlags(f)
	o.log.AddFlags(f)
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet",
		"root `folder` of the kubelet, with pod-resources/")
	f.StringVar(&o.DevicePluginDir, "device-plugin-dir", "",
		"device-plugin `folder` of the kubelet (default <kubelet-dir>/device-plugins; a kubelet with --root-dir "+
			"still uses /var/lib/kubelet/device-plugins)")
	f.BoolVar(&o.DevicePlugin, "device-plugin", true,
		"advertise devices to the kubelet; false: only export metrics, beside another device plugin")
	f.BoolVar(&o.TakeOver, "take-over", false,
		"register resources at once, even if another device plugin serves them; false: the first registration of a "+
			"process waits until the other plugin is gone")
	f.StringVar(&o.PodLogsDir, "pod-logs-dir", "/var/log/pods",
		"`folder` of pod logs (the kubelet's podLogsDir), to find the containers of processes")
	f.StringVar(&o.PodsAPIFallbackSocket, "pods-api-fallback-socket", "",
		"`socket` with the Pods API of podgauge-kube, used if the kubelet has no Pods API (before 1.37)")
	f.StringVar(&o.IgnoreClaimsFile, "ignore-claims-file", "",
		"`file` with further claims of --ignore-claims, one per line; read again when it changes, may be missing")
	o.Builder.AddFlags(f)
	o.Health.addFlags(f)
	o.Metrics.addFlags(f)
	addPlatformFlags(f)
	f.BoolVar(&o.Version, "version", false, "print the version and exit")
}

// Complete reads environment and config file after the flags are parsed. The
// error is a single line with the correction.
func (o *Options) Complete() (err error) {
	if o.Loaded, err = o.Builder.Load(); err != nil {
		return err
	}
	return o.check()
}

// CompleteWithoutConfig is Complete with the defaults in place of an invalid
// config, whose error it keeps.
func (o *Options) CompleteWithoutConfig() error {
	location, err := o.Builder.Location()
	if err != nil {
		return err
	}
	if o.Loaded, err = o.Builder.Load(); err != nil && location.File != "" {
		o.ConfigErr = err
		o.Loaded, err = o.Builder.LoadFrom(config.FileLocation{})
	}
	return cmp.Or(err, o.check())
}

// check checks the flags, and derives settings from others.
func (o *Options) check() error {
	if err := o.applyKubeletSocket(); err != nil {
		return err
	}
	o.Metrics.Hostname = o.Hostname
	o.Web.Node = o.Hostname
	if o.DevicePluginDir == "" {
		o.DevicePluginDir = filepath.Join(o.KubeletDir, "device-plugins")
	}
	if o.KubeletDir == "" {
		return errors.New("--kubelet-dir: expected a folder")
	}
	if err := text.CheckSocketPath(o.PodsAPIFallbackSocket); err != nil {
		return fmt.Errorf("--pods-api-fallback-socket: %w", err)
	}
	return cmp.Or(o.Metrics.check(), o.Health.check(), o.Web.Check(), o.log.Check())
}

// applyKubeletSocket derives the device-plugin folder from NVIDIA's flag, if
// given. An empty flag disables the device plugin.
func (o *Options) applyKubeletSocket() error {
	origin, socket := o.Loaded.Origins["kubelet-socket"], o.Loaded.Settings.KubeletSocket
	switch {
	case origin == "":
	case socket == "":
		o.DevicePlugin = false
	case filepath.Base(socket) != "kubelet.sock":
		return fmt.Errorf("%s: %q: expected a path ending in /kubelet.sock", origin, socket)
	default:
		o.DevicePluginDir = cmp.Or(o.DevicePluginDir, filepath.Dir(socket))
	}
	return nil
}

// Logger returns a logger with the level and format of the flags.
func (o *Options) Logger(w io.Writer) *slog.Logger { return o.log.Logger(w) }
