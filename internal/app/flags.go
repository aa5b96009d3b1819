package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/spf13/pflag"
)

// options are the checked command line.
type options struct {
	web     webOptions
	metrics metricsOptions
	health  healthOptions

	kubernetes kubernetesOptions

	logLevel, logFormat         string
	kubeletDir, devicePluginDir string
	podLogsDir                  string
	devicePlugin, takeOver      bool
	hostname                    string // of the node
	ownPod                      string // podgauge's pod, if a pod of the API server

	platform  Platform
	version   bool
	daemon    bool  // the command is the daemon
	doctor    bool  // the command examines the node
	configErr error // of an invalid config, for doctor

	builder *config.Builder
	loaded  config.Loaded    // at start
	reload  <-chan os.Signal // forces a read of the config; nil: never
}

// newOptions returns the options of a command line without flags.
func newOptions(p Platform, lookupEnv envLookup) *options {
	return &options{platform: p, builder: config.NewBuilder(lookupEnv), hostname: hostname(lookupEnv), ownPod: ownPod(lookupEnv)}
}

// complete reads environment and config file after the flags are parsed. The
// error is a single line with the correction.
func (o *options) complete() error {
	if err := o.loadConfig(); err != nil {
		return err
	}
	if err := o.applyKubeletSocket(); err != nil {
		return err
	}
	o.metrics.Hostname = o.hostname
	o.web.access.node = o.hostname
	if o.devicePluginDir == "" {
		o.devicePluginDir = filepath.Join(o.kubeletDir, "device-plugins")
	}
	return o.check()
}

// addFlags declares the flags of the daemon. docs/reference/flags.md is generated from the flags.
func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	o.web.addFlags(f)
	f.StringVar(&o.logLevel, "log.level", "info", "only log messages of this `level` and above: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log.format", "logfmt", "`format` of log messages: logfmt or json")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "root `folder` of the kubelet, with pod-resources/")
	f.StringVar(&o.devicePluginDir, "device-plugin-dir", "", "device-plugin `folder` of the kubelet (default <kubelet-dir>/device-plugins; a kubelet with --root-dir still uses /var/lib/kubelet/device-plugins)")
	f.BoolVar(&o.devicePlugin, "device-plugin", true, "advertise devices to the kubelet; false: only export metrics, beside another device plugin")
	f.BoolVar(&o.takeOver, "take-over", false, "register resources at once, even if another device plugin serves them; false: the first registration of a process waits until the other plugin is gone")
	f.StringVar(&o.podLogsDir, "pod-logs-dir", "/var/log/pods", "`folder` of pod logs (the kubelet's podLogsDir), to find the containers of processes")
	o.builder.AddFlags(f)
	o.health.addFlags(f)
	o.metrics.addFlags(f)
	o.kubernetes.addFlags(f)
	o.platform.AddFlags(f)
	f.BoolVar(&o.version, "version", false, "print the version and exit")
}

// hostname returns the node's name as dcgm-exporter does: NODE_NAME, set by a
// DaemonSet, or the machine's name. In a pod, the latter is the pod's name.
func hostname(lookupEnv envLookup) string {
	name, _ := lookupEnv("NODE_NAME")
	machine, _ := os.Hostname() // empty after an error
	return cmp.Or(name, machine)
}

// ownPod returns POD_NAME, set by a DaemonSet; "" for a static pod, whose name the
// kubelet ends with the node's name (generatePodName in pkg/kubelet/config/common.go).
func ownPod(lookupEnv envLookup) string {
	pod, _ := lookupEnv("POD_NAME")
	if strings.HasSuffix(pod, "-"+strings.ToLower(hostname(lookupEnv))) {
		return ""
	}
	return pod
}

// normalizeDashes adds a dash to flags with a single dash. NVIDIA's plugin
// accepts such flags; pflag reads single letters.
func normalizeDashes(f *pflag.FlagSet, args []string) []string {
	normalized := slices.Clone(args)
	for i, arg := range normalized {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		switch {
		case arg == "--":
			return normalized
		case strings.HasPrefix(arg, "-") && len(name) > 1 && f.Lookup(name) != nil:
			normalized[i] = "-" + arg
		}
	}
	return normalized
}

// valueHints are the forms of values by type of flag. The errors of package strconv name Go functions.
var valueHints = map[string]string{"bool": "true or false", "int": "a whole number", "duration": "a duration such as 30s"}

// flagError returns an error in the form of a variable's or file's error.
func flagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	if want := valueHints[invalid.GetFlag().Value.Type()]; want != "" {
		return fmt.Errorf("--%s: %q: expected %s", invalid.GetFlag().Name, invalid.GetValue(), want)
	}
	return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
}

// chooseByLabel makes the value of the node's label the name of the config;
// --config-name is the name for a node without the label. Only the daemon reads
// the label, other commands use what the daemon stored. A stored value with a
// config is used at once, so that a start does not wait for the API server; the
// daemon follows the label afterwards.
func (o *options) chooseByLabel(ctx context.Context, f *pflag.FlagSet, stderr io.Writer) error {
	if o.kubernetes.configLabel == "" {
		return nil
	}
	location, err := o.builder.Location()
	switch {
	case err != nil:
		return err
	case location.File == "":
		return errors.New("--kubernetes.config-label requires --config-file with a folder of configs or a file of named configs")
	case location.NameFile != "":
		return errors.New("--kubernetes.config-label and --config-name-file: set only one of them")
	}
	file := filepath.Join(o.health.stateDir, labelFile)
	if o.daemon {
		if file, err = o.kubernetes.followLabel(o.health.stateDir, location.Name); err != nil {
			return err
		}
	}
	_, err = os.Stat(file)
	stored := err == nil
	if !o.daemon && (!stored || o.health.stateDir == "") { // the daemon has not run, or its folder is unknown
		return nil
	}
	if err := errors.Join(f.Set("config-name", ""), f.Set("config-name-file", file)); err != nil {
		return err
	}
	if !o.daemon {
		return nil
	}
	if _, err := o.builder.Load(); err != nil || !stored {
		o.kubernetes.loadLabel(ctx, stderr)
	}
	return nil
}

// loadConfig reads the config. doctor reports an invalid config, and continues with the defaults.
func (o *options) loadConfig() error {
	location, err := o.builder.Location()
	if err != nil {
		return err
	}
	if o.loaded, err = o.builder.Load(); err != nil && o.doctor && location.File != "" {
		o.configErr = err
		o.loaded, err = o.builder.LoadFrom(config.FileLocation{})
	}
	return err
}

// applyKubeletSocket derives the device-plugin folder from NVIDIA's flag, if
// given. An empty flag disables the device plugin.
func (o *options) applyKubeletSocket() error {
	origin, socket := o.loaded.Origins["kubelet-socket"], o.loaded.Settings.KubeletSocket
	switch {
	case origin == "":
	case socket == "":
		o.devicePlugin = false
	case filepath.Base(socket) != "kubelet.sock":
		return fmt.Errorf("%s: %q: expected a path ending in /kubelet.sock", origin, socket)
	default:
		o.devicePluginDir = cmp.Or(o.devicePluginDir, filepath.Dir(socket))
	}
	return nil
}

func (o *options) check() error {
	if o.kubeletDir == "" {
		return errors.New("--kubelet-dir: expected a folder")
	}
	if err := cmp.Or(o.metrics.check(), o.health.check(), o.web.check()); err != nil {
		return err
	}
	if err := new(slog.Level).UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("--log.level %q: expected debug, info, warn or error", o.logLevel)
	}
	if o.logFormat != "logfmt" && o.logFormat != "json" {
		return fmt.Errorf("--log.format %q: expected logfmt or json", o.logFormat)
	}
	return nil
}

// logger returns a logger with the level and format of the flags.
func (o *options) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(o.logLevel)) // check has accepted the level
	handlerOptions := &slog.HandlerOptions{Level: level}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, handlerOptions))
	}
	return slog.New(slog.NewTextHandler(w, handlerOptions))
}
