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

// envLookup finds a variable of the environment, as os.LookupEnv does.
type envLookup func(name string) (value string, set bool)

// options are the command line, once it was found to make sense.
type options struct {
	web       webOptions
	logLevel  string
	logFormat string

	kubeletDir      string
	devicePluginDir string
	devicePlugin    bool
	podLogsDir      string

	metrics  metricsOptions
	health   healthOptions
	hostname string // of the node

	platform Platform
	version  bool
	// validateMode: the command is to say what the config means, and to do nothing.
	validateMode bool
	// doctorMode: the command is to look at the node. configErr is why it does so without the
	// config, and output how it says what it has found.
	doctorMode bool
	configErr  error
	output     string

	// builder makes the device plugin's settings, and loaded is what it first made.
	builder *config.Builder
	loaded  config.Loaded
	// reload asks for a look at the config at once; nil: nobody does.
	reload <-chan struct{}
	// driverSignals are signals that ask for the driver to be let go of, or taken up again;
	// nil: none come.
	driverSignals <-chan os.Signal
}

// flagSet declares the command line. The table of docs/flags.md is generated from it.
func (o *options) flagSet() *pflag.FlagSet {
	f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	f.SortFlags = false
	o.web.addFlags(f)
	f.StringVar(&o.logLevel, "log.level", "info", "only log messages of this `level` and above: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log.format", "logfmt", "`format` of log messages: logfmt or json")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's root `folder`, which holds pod-resources/")
	f.StringVar(&o.devicePluginDir, "device-plugin-dir", "", "the kubelet's device-plugin `folder` (default <kubelet-dir>/device-plugins; a kubelet with a --root-dir of its own still has it in /var/lib/kubelet)")
	f.BoolVar(&o.devicePlugin, "device-plugin", true, "offer the devices to the kubelet; false exports only, beside another device plugin")
	f.StringVar(&o.podLogsDir, "pod-logs-dir", "/var/log/pods", "`folder` in which the kubelet has the pods' logs (its podLogsDir): their names say whose a process is")
	o.builder.AddFlags(f)
	o.health.addFlags(f)
	o.metrics.addFlags(f)
	o.platform.AddFlags(f)
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	return f
}

// parseOptions reads the command line, the environment and the config file. The error is
// one line that says what to change.
func parseOptions(p Platform, args []string, lookupEnv envLookup, usage io.Writer) (options, error) {
	o := options{platform: p, builder: config.NewBuilder(lookupEnv), hostname: hostname(lookupEnv)}
	if len(args) > 0 && args[0] == "validate" {
		o.validateMode, args = true, args[1:]
	}
	f := o.flagSet()
	if len(args) > 0 && args[0] == "doctor" {
		o.doctorMode, args = true, args[1:]
		f.StringVarP(&o.output, "output", "o", "table", "of doctor: `form` of what it says: table or json")
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
	if err := o.requireConfig(); err != nil {
		return o, err
	}
	var err error
	if o.loaded, err = o.builder.Load(); err != nil {
		err = o.withoutConfig(err)
	}
	if err != nil {
		return o, err
	}
	if err := o.applyKubeletSocket(); err != nil {
		return o, err
	}
	if o.devicePluginDir == "" {
		o.devicePluginDir = filepath.Join(o.kubeletDir, "device-plugins")
	}
	if err := o.check(); err != nil || !o.doctorMode {
		return o, err
	}
	return o, checkOutput(o.output)
}

// normalizeDashes spells flags that have one dash with two. NVIDIA's plugin takes both;
// to pflag one dash begins a row of letters.
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

// valueHints are the types of flags of whose values pflag says itself what is wrong.
var valueHints = map[string]string{"bool": "true or false", "int": "a whole number", "duration": "a time, as in 30s"}

// flagError says of a flag's value what is said of a variable's and of a file's.
// pflag's own words have the value twice.
func flagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	cause := invalid.Unwrap()
	if want, known := valueHints[invalid.GetFlag().Value.Type()]; known {
		cause = fmt.Errorf("%q: want %s", invalid.GetValue(), want)
	}
	return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, cause)
}

// parseArgs reads what is no flag: the FILE of validate.
func (o *options) parseArgs(f *pflag.FlagSet) error {
	maxArgs := 0
	if o.validateMode {
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

// requireConfig has validate say so when there is nothing to validate, rather than
// call it valid.
func (o *options) requireConfig() error {
	if !o.validateMode {
		return nil
	}
	source, err := o.builder.Location()
	if err == nil && source.File == "" {
		err = errors.New("validate: want a config: podgauge validate FILE, --config-file or CONFIG_FILE")
	}
	return err
}

// applyKubeletSocket follows NVIDIA's flag, where it is given: it says where the
// folder of sockets is, and that nothing is to be registered where it is empty.
func (o *options) applyKubeletSocket() error {
	if !o.builder.IsSet("kubelet-socket") {
		return nil
	}
	socket := o.loaded.Settings.KubeletSocket
	if socket == "" {
		o.devicePlugin = false
		return nil
	}
	if filepath.Base(socket) != "kubelet.sock" {
		return fmt.Errorf("%s: %q: its name is not kubelet.sock", o.loaded.Origins["kubelet-socket"], socket)
	}
	if o.devicePluginDir == "" {
		o.devicePluginDir = filepath.Dir(socket)
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
	return o.platform.CheckFlags(o.doctorMode)
}

// logger writes to w what the flags let through.
func (o *options) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		level = slog.LevelInfo // check has refused it before
	}
	handlerOptions := &slog.HandlerOptions{Level: level}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, handlerOptions))
	}
	return slog.New(slog.NewTextHandler(w, handlerOptions))
}

// isHelp tells whether the user asked for the usage, which has been printed.
func isHelp(err error) bool { return errors.Is(err, pflag.ErrHelp) }
