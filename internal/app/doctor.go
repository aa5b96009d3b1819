package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml/cdi"
	"github.com/podgauge/podgauge/internal/text"
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
	doctorOptions := o.doctorOptions(lookupEnv)
	m, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Fprintln(stderr, "podgauge doctor:", err)
		return exitError
	}
	defer m.close()
	if m.Library != nil {
		doctorOptions.Driver = struct {
			device.Backend
			DriverLibrary
		}{m.Backend, m.Library}
	}
	d := newDoctorReport(o.hostname, doctor.Run(ctx, doctorOptions))
	if ctx.Err() != nil { // the findings are incomplete
		fmt.Fprintln(stderr, "podgauge doctor: interrupted")
		return exitError
	}
	page := d.formatTable()
	if o.output == "json" {
		page = d.formatJSON()
	}
	if _, err := io.WriteString(stdout, text.PrintableLines(page)); err != nil {
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
		Config: source.File, ConfigErr: o.configErr,
		DevRoot: resolveDevRoot(s), InjectsDeviceNodes: s.PassDeviceSpecs || usesCDI(s),
		KubeletDir: o.kubeletDir, DevicePluginDir: o.devicePluginDir, DevicePlugin: o.devicePlugin,
		PodLogsDir: o.podLogsDir, KernelLog: o.health.kernelLog, StateDir: o.health.stateDir,
		ProcessesVisible: cgroup.New(cgroup.Options{Log: slog.New(slog.DiscardHandler)}).Visible(),
		LookupEnv:        lookupEnv,
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

func (d *doctorReport) formatJSON() string {
	body, _ := json.MarshalIndent(d, "", "  ") // all fields can be encoded
	return string(body) + "\n"
}

// formatTable returns a row for each check, and a paragraph for each problem.
func (d *doctorReport) formatTable() string {
	var details strings.Builder
	rows := [][]string{{"CHECK", "STATUS", "MESSAGE"}}
	for _, f := range d.Checks {
		rows = append(rows, []string{f.Check, string(f.Status), f.Message})
		if f.Impact != "" {
			fmt.Fprintf(&details, "\n%s\n  impact: %s\n  fix:    %s\n", f.Check, f.Impact, f.Fix)
		}
	}
	summary := fmt.Sprintf("%s: %s, %s\n", d.Node, text.Plural(d.Failures, "failure"), text.Plural(d.Warnings, "warning"))
	return summary + formatTable(rows) + details.String()
}
