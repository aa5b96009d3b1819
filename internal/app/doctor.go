package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml/cdi"
)

// doctorReport is the output of `podgauge doctor -o json`.
type doctorReport struct {
	Node     string           `json:"node"`
	Version  string           `json:"version"`
	Failures int              `json:"failures"`
	Warnings int              `json:"warnings"`
	Checks   []doctor.Finding `json:"checks"`
}

// runDoctor examines the node, and returns the exit status.
func (o *options) runDoctor(ctx context.Context, lookupEnv envLookup, stdout, stderr io.Writer) int {
	d := newDoctorReport(o.hostname, doctor.Run(ctx, o.doctorOptions(lookupEnv)))
	if ctx.Err() != nil { // the findings are incomplete
		fmt.Fprintln(stderr, "podgauge doctor: interrupted")
		return exitError
	}
	terminal := isTerminal(stdout)
	text := ""
	if o.output == "json" {
		text = d.formatJSON(terminal)
	} else {
		text = d.formatTable(useColor(terminal, lookupEnv))
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		fmt.Fprintln(stderr, "podgauge doctor:", err)
		return exitError
	}
	if d.Failures > 0 {
		return exitError
	}
	return exitOK
}

// doctorOptions returns the options of an examination.
func (o *options) doctorOptions(lookupEnv envLookup) doctor.Options {
	s := o.loaded.Settings
	source, _ := o.builder.Location() // checked by loadConfig
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

func (d *doctorReport) formatJSON(terminal bool) string {
	body, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		panic(err) // all fields can be encoded
	}
	if terminal {
		return sanitizeLines(string(body)) + "\n"
	}
	return string(body) + "\n"
}

// formatTable returns a row for each check, and a paragraph for each problem.
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
