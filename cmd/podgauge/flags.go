package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// What --simulate may say.
const (
	simulateNothing  = ""
	simulateNode     = "node"
	simulateHardware = "hardware"
)

// config is the command line, once it was found to make sense.
type config struct {
	listenAddress string
	telemetryPath string
	pprof         bool
	logLevel      string
	logFormat     string

	kubeletDir      string
	devicePluginDir string
	devicePlugin    bool
	passDeviceSpecs bool

	driverRoot    string
	driverRootCtr string
	simulate      string
	version       bool
}

// environment names the variable that stands for a flag which is not given:
// those of NVIDIA's device plugin, under its names.
var environment = map[string]string{
	"pass-device-specs":    "PASS_DEVICE_SPECS",
	"nvidia-driver-root":   "NVIDIA_DRIVER_ROOT",
	"driver-root-ctr-path": "DRIVER_ROOT_CTR_PATH",
}

// aliases are other spellings that NVIDIA's device plugin takes.
var aliases = map[string]string{
	"driver-root":           "nvidia-driver-root",
	"container-driver-root": "driver-root-ctr-path",
}

// flags declares the command line. The README's table is generated from it.
func (c *config) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&c.listenAddress, "web.listen-address", ":9400", "`address` on which /metrics and the probes are served")
	f.StringVar(&c.telemetryPath, "web.telemetry-path", "/metrics", "`path` under which the metrics are served")
	f.BoolVar(&c.pprof, "web.enable-pprof", false, "serve Go's profiles under /debug/pprof/")
	f.StringVar(&c.logLevel, "log.level", "info", "only log messages of this `level` and above: debug, info, warn or error")
	f.StringVar(&c.logFormat, "log.format", "logfmt", "`format` of log messages: logfmt or json")
	f.StringVar(&c.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's root `folder`, which holds pod-resources/")
	f.StringVar(&c.devicePluginDir, "device-plugin-dir", "", "the kubelet's device-plugin `folder` (default <kubelet-dir>/device-plugins)")
	f.BoolVar(&c.devicePlugin, "device-plugin", true, "offer the devices to the kubelet; false exports only, beside another device plugin")
	f.BoolVar(&c.passDeviceSpecs, "pass-device-specs", false, "have Allocate answer the device nodes as well")
	f.StringVar(&c.driverRoot, "nvidia-driver-root", "/", "`folder` in which the driver is installed, as the host sees it; also --driver-root")
	f.StringVar(&c.driverRootCtr, "driver-root-ctr-path", "/driver-root", "`folder` under which that one is mounted here; also --container-driver-root")
	f.StringVar(&c.simulate, "simulate", simulateNothing, "simulate a `node`, kubelet and pods included, or its hardware only")
	f.Lookup("simulate").NoOptDefVal = simulateNode
	f.BoolVar(&c.version, "version", false, "print the version and exit")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if real, ok := aliases[name]; ok {
			name = real
		}
		return pflag.NormalizedName(name)
	})
	return f
}

// parse reads the command line and the environment. The error is one line that
// says what to change.
func parse(args []string, getenv func(string) string, usage io.Writer) (config, error) {
	var c config
	f := c.flags()
	f.SetOutput(usage)
	f.Usage = func() {
		fmt.Fprintf(usage, "Usage: podgauge [flags]\n\n%s", f.FlagUsages())
	}
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	for name, variable := range environment {
		value := getenv(variable)
		if value == "" || f.Changed(name) {
			continue
		}
		if err := f.Set(name, value); err != nil {
			return c, fmt.Errorf("environment variable %s: %w", variable, err)
		}
	}
	if c.devicePluginDir == "" {
		c.devicePluginDir = filepath.Join(c.kubeletDir, "device-plugins")
	}
	return c, c.check()
}

func (c *config) check() error {
	if c.kubeletDir == "" {
		return errors.New("--kubelet-dir: want a folder")
	}
	if _, _, err := net.SplitHostPort(c.listenAddress); err != nil {
		return fmt.Errorf("--web.listen-address: %w", err)
	}
	if !strings.HasPrefix(c.telemetryPath, "/") || strings.ContainsAny(c.telemetryPath, "{} ") {
		return fmt.Errorf("--web.telemetry-path %q: want a path that begins with /", c.telemetryPath)
	}
	switch c.telemetryPath {
	case "/healthz", "/readyz":
		return fmt.Errorf("--web.telemetry-path %q: that is a probe's", c.telemetryPath)
	}
	if err := new(slog.Level).UnmarshalText([]byte(c.logLevel)); err != nil {
		return fmt.Errorf("--log.level %q: want debug, info, warn or error", c.logLevel)
	}
	if c.logFormat != "logfmt" && c.logFormat != "json" {
		return fmt.Errorf("--log.format %q: want logfmt or json", c.logFormat)
	}
	switch c.simulate {
	case simulateNothing, simulateNode, simulateHardware:
	default:
		return fmt.Errorf("--simulate=%s: want node or hardware", c.simulate)
	}
	return nil
}

// logger writes to w what the flags let through.
func (c *config) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
		level = slog.LevelInfo // check has refused it before
	}
	options := &slog.HandlerOptions{Level: level}
	if c.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// isHelp tells whether the user asked for the usage, which has been printed.
func isHelp(err error) bool { return errors.Is(err, pflag.ErrHelp) }
