package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml/cdi"
)

// doctorReport is what `podgauge doctor -o json` says.
type doctorReport struct {
	Node     string           `json:"node"`
	Version  string           `json:"version"`
	Failures int              `json:"failures"`
	Warnings int              `json:"warnings"`
	Checks   []doctor.Finding `json:"checks"`
}

// withoutConfig has doctor go on where it is the config that is wrong, and not the command line:
// that is one of the things to be found.
func (o *options) withoutConfig(loadErr error) error {
	if !o.doctorMode {
		return loadErr
	}
	source, err := o.builder.Location()
	if err != nil || source.File == "" {
		return loadErr
	}
	if o.loaded, err = o.builder.LoadFrom(config.FileLocation{}); err != nil {
		return err
	}
	o.configErr = loadErr
	return nil
}

// commandName is how the command is named before what it complains of.
func (o *options) commandName() string {
	if o.doctorMode {
		return "podgauge doctor"
	}
	return "podgauge"
}

// checkOutput checks the value of --output.
func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("--output %q: want table or json", output)
	}
	return nil
}

// runDoctor looks at the node, and returns the exit status.
func (o *options) runDoctor(ctx context.Context, lookupEnv envLookup, stdout, stderr io.Writer) int {
	d := newDoctorReport(o.hostname, doctor.Run(ctx, o.doctorOptions(lookupEnv)))
	if ctx.Err() != nil { // who was not waited for is not slow
		fmt.Fprintln(stderr, "podgauge doctor: interrupted")
		return exitError
	}
	text, err := d.format(o.output, isTerminal(stdout), lookupEnv)
	if err == nil {
		_, err = io.WriteString(stdout, text)
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "podgauge doctor:", err)
		return exitError
	case d.Failures > 0:
		return exitError
	}
	return exitOK
}

// doctorOptions says what there is to look at.
func (o *options) doctorOptions(lookupEnv envLookup) doctor.Options {
	s := o.loaded.Settings
	source, _ := o.builder.Location() // it was read before
	opts := doctor.Options{
		Config: source.File, ConfigErr: o.configErr, Notices: o.loaded.Notices,
		MountedDriverRoot: s.ContainerDriverRoot, DevRoot: resolveDevRoot(s), InjectsDeviceNodes: s.PassDeviceSpecs || usesCDI(s),
		KubeletDir: o.kubeletDir, DevicePluginDir: o.devicePluginDir, DevicePlugin: o.devicePlugin,
		PodLogsDir: o.podLogsDir, KernelLog: o.health.kernelLog, StateDir: o.health.stateDir,
		ProcessesVisible: cgroup.New(cgroup.Options{Log: slog.New(slog.DiscardHandler)}).Visible(),
		LookupEnv:        lookupEnv,
		Driver:           o.platform.Driver(libraryRoots(s)),
	}
	for _, key := range o.loaded.UnknownKeys {
		opts.UnknownKeys = append(opts.UnknownKeys, key.String())
	}
	if usesCDI(s) {
		opts.CDIDir = cdi.DefaultDir
	}
	return opts
}

func newDoctorReport(node string, findings []doctor.Finding) doctorReport {
	d := doctorReport{Node: node, Version: version, Checks: findings}
	for _, f := range findings {
		switch f.Status {
		case doctor.StatusFailure:
			d.Failures++
		case doctor.StatusWarning:
			d.Warnings++
		case doctor.StatusOK, doctor.StatusSkipped:
		}
	}
	return d
}

func (d *doctorReport) format(output string, terminal bool, lookupEnv envLookup) (string, error) {
	if output == "json" {
		body, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return "", err
		}
		if terminal {
			return sanitizeLines(string(body)) + "\n", nil
		}
		return string(body) + "\n", nil
	}
	return d.formatTable(useColor(terminal, lookupEnv)), nil
}

// formatTable has a line for each check, and below what is to be done.
func (d *doctorReport) formatTable(colored bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s, %s\n", sanitize(d.Node), plural(d.Failures, "failure"), plural(d.Warnings, "warning"))
	t := newTextTable(1, "CHECK", "STATUS", "MESSAGE")
	for _, f := range d.Checks {
		t.add(statusColors[f.Status], f.Check, string(f.Status), f.Message)
	}
	t.write(&text, colored)
	for _, f := range d.Checks {
		if f.Impact == "" {
			continue
		}
		fmt.Fprintf(&text, "\n%s\n  impact: %s\n  fix:    %s\n", sanitize(f.Check), sanitize(f.Impact), sanitize(f.Fix))
	}
	return text.String()
}

var statusColors = map[doctor.CheckStatus]string{doctor.StatusFailure: colorRed, doctor.StatusWarning: colorYellow}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
