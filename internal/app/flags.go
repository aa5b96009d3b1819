package app

import (
	"cmp"
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

	logLevel, logFormat         string
	kubeletDir, devicePluginDir string
	podLogsDir                  string
	devicePlugin                bool
	hostname                    string // of the node

	platform  Platform
	version   bool
	command   string // "": the daemon; "validate": print the meaning of the config; "doctor": examine the node
	output    string
	configErr error // of an invalid config, for doctor

	builder *config.Builder
	loaded  config.Loaded    // at start
	reload  <-chan os.Signal // forces a read of the config; nil: never
	// driverSignals release and resume the driver; nil: never.
	driverSignals <-chan os.Signal
}

// parseOptions reads command line, environment and config file. The error is a single line with the correction.
func parseOptions(p Platform, args []string, lookupEnv envLookup, usage io.Writer) (options, error) {
	o := options{platform: p, builder: config.NewBuilder(lookupEnv), hostname: hostname(lookupEnv)}
	if len(args) > 0 && (args[0] == "validate" || args[0] == "doctor") {
		o.command, args = args[0], args[1:]
	}
	f := o.flagSet()
	if o.output = "table"; o.command == "doctor" {
		f.StringVarP(&o.output, "output", "o", o.output, "output `format` of doctor: table or json")
	}
	f.SetOutput(usage)
	f.Usage = func() {
		fmt.Fprintf(usage, "Usage: podgauge [flags]\n       podgauge validate FILE [flags]\n       podgauge doctor [flags]\n       podgauge status [flags]\n       podgauge incidents [flags]\n\n%s", f.FlagUsages())
	}
	if err := f.Parse(normalizeDashes(f, args)); err != nil {
		return o, flagError(err)
	}
	if err := o.parseArgs(f); err != nil || o.version {
		return o, err
	}
	if err := o.loadConfig(); err != nil {
		return o, err
	}
	if err := o.applyKubeletSocket(); err != nil {
		return o, err
	}
	o.metrics.Hostname = o.hostname
	if o.devicePluginDir == "" {
		o.devicePluginDir = filepath.Join(o.kubeletDir, "device-plugins")
	}
	return o, o.check()
}

// flagSet declares the command line. docs/flags.md is generated from the flag set.
func (o *options) flagSet() *pflag.FlagSet {
	f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	f.SortFlags = false
	o.web.addFlags(f)
	f.StringVar(&o.logLevel, "log.level", "info", "only log messages of this `level` and above: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log.format", "logfmt", "`format` of log messages: logfmt or json")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "root `folder` of the kubelet, with pod-resources/")
	f.StringVar(&o.devicePluginDir, "device-plugin-dir", "", "device-plugin `folder` of the kubelet (default <kubelet-dir>/device-plugins; a kubelet with --root-dir still uses /var/lib/kubelet/device-plugins)")
	f.BoolVar(&o.devicePlugin, "device-plugin", true, "advertise devices to the kubelet; false: only export metrics, beside another device plugin")
	f.StringVar(&o.podLogsDir, "pod-logs-dir", "/var/log/pods", "`folder` of pod logs (the kubelet's podLogsDir), to find the containers of processes")
	o.builder.AddFlags(f)
	o.health.addFlags(f)
	o.metrics.addFlags(f)
	o.platform.AddFlags(f)
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	return f
}

// hostname returns the node's name as dcgm-exporter does: NODE_NAME, set by a DaemonSet, or the machine's name. In a pod, the
// latter is the pod's name.
func hostname(lookupEnv envLookup) string {
	name, _ := lookupEnv("NODE_NAME")
	machine, _ := os.Hostname() // empty after an error
	return cmp.Or(name, machine)
}

// normalizeDashes adds a dash to flags with a single dash. NVIDIA's plugin accepts such flags; pflag reads single letters.
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
var valueHints = map[string]string{"bool": "true or false", "int": "a whole number", "duration": "a time, as in 30s"}

// flagError returns an error in the form of a variable's or file's error.
func flagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	if want := valueHints[invalid.GetFlag().Value.Type()]; want != "" {
		return fmt.Errorf("--%s: %q: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
	}
	return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
}

// parseArgs reads the FILE of validate.
func (o *options) parseArgs(f *pflag.FlagSet) error {
	maxArgs := 0
	if o.command == "validate" {
		maxArgs = 1
	}
	switch {
	case f.NArg() > maxArgs:
		return fmt.Errorf("unexpected argument %q", f.Arg(maxArgs))
	case f.NArg() == 1 && f.Changed("config-file"):
		return errors.New("validate: FILE and --config-file: want one of them")
	case f.NArg() == 1:
		return f.Set("config-file", f.Arg(0))
	}
	return nil
}

// loadConfig reads the config. validate requires a config; doctor reports an invalid config, and continues with the defaults.
func (o *options) loadConfig() error {
	location, err := o.builder.Location()
	if o.command == "validate" && err == nil && location.File == "" {
		err = errors.New("validate: want a config: podgauge validate FILE, --config-file or CONFIG_FILE")
	}
	if err != nil {
		return err
	}
	if o.loaded, err = o.builder.Load(); err != nil && o.command == "doctor" && location.File != "" {
		o.configErr = err
		o.loaded, err = o.builder.LoadFrom(config.FileLocation{})
	}
	return err
}

// applyKubeletSocket derives the device-plugin folder from NVIDIA's flag, if given. An empty flag disables the device plugin.
func (o *options) applyKubeletSocket() error {
	origin, socket := o.loaded.Origins["kubelet-socket"], o.loaded.Settings.KubeletSocket
	switch {
	case origin == "":
	case socket == "":
		o.devicePlugin = false
	case filepath.Base(socket) != "kubelet.sock":
		return fmt.Errorf("%s: %q: want a path ending in /kubelet.sock", origin, socket)
	default:
		o.devicePluginDir = cmp.Or(o.devicePluginDir, filepath.Dir(socket))
	}
	return nil
}

func (o *options) check() error {
	if o.kubeletDir == "" {
		return errors.New("--kubelet-dir: want a folder")
	}
	if err := cmp.Or(o.metrics.check(), o.health.check(), o.web.check()); err != nil {
		return err
	}
	if err := new(slog.Level).UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("--log.level %q: want debug, info, warn or error", o.logLevel)
	}
	if o.logFormat != "logfmt" && o.logFormat != "json" {
		return fmt.Errorf("--log.format %q: want logfmt or json", o.logFormat)
	}
	return checkOutput(o.output)
}

// checkOutput checks the value of --output.
func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("--output %q: want table or json", output)
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

// isHelp reports whether the user asked for the usage. pflag has printed the usage.
func isHelp(err error) bool { return errors.Is(err, pflag.ErrHelp) }
