package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/internal/text"
)

// runDoctor examines the node, and prints the report.
func (o *options) runDoctor(ctx context.Context, out cli.Output, lookupEnv envLookup, stdout io.Writer) error {
	doctorOptions := o.doctorOptions(lookupEnv)
	m, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err != nil {
		return cli.Failed(err)
	}
	defer m.close()
	if m.Library != nil {
		doctorOptions.Driver = struct {
			device.Backend
			DriverLibrary
		}{m.Backend, m.Library}
	}
	report := doctor.NewReport(o.hostname, version, doctor.Run(ctx, doctorOptions))
	if ctx.Err() != nil { // the findings are incomplete
		return cli.Failed(errors.New("interrupted"))
	}
	page, err := renderReport(&report, out)
	if err == nil {
		_, err = io.WriteString(stdout, text.PrintableLines(page))
	}
	if err == nil && report.Failures > 0 {
		return cli.ErrReported
	}
	return cli.Failed(err)
}

// doctorOptions returns the options of an examination.
func (o *options) doctorOptions(lookupEnv envLookup) doctor.Options {
	s := o.loaded.Settings
	source, _ := o.builder.Location() // checked by loadConfig
	opts := doctor.Options{
		Config: source.File, ConfigErr: o.configErr,
		DevRoot: rules.DevRoot(s), InjectsDeviceNodes: s.PassDeviceSpecs || rules.UsesCDI(s),
		HostRoots: []string{s.ContainerDriverRoot, "/"}, DeviceListStrategies: s.DeviceListStrategy,
		KubeletDir: o.kubeletDir, DevicePluginDir: o.devicePluginDir, DevicePlugin: o.devicePlugin,
		PodLogsDir: o.podLogsDir, KernelLog: o.health.kernelLog, StateDir: o.health.stateDir,
		ExpectedGPUs:     s.ExpectedGPUs,
		ProcessesVisible: cgroup.New(cgroup.Options{Log: slog.New(slog.DiscardHandler)}).Visible(),
		LookupEnv:        lookupEnv, ReadyURL: o.web.readyURL(),
	}
	for _, key := range o.loaded.UnknownKeys {
		opts.UnknownKeys = append(opts.UnknownKeys, key.String())
	}
	if rules.UsesCDI(s) {
		opts.CDIDir = cdi.DefaultDir
	}
	return opts
}

// renderReport returns JSON or YAML; or a row for each check, and a paragraph for each problem.
func renderReport(r *doctor.Report, out cli.Output) (string, error) {
	if !out.IsTable() {
		body, _ := json.MarshalIndent(r, "", "  ") // all fields can be encoded
		return out.Document(append(body, '\n'))
	}
	var details strings.Builder
	rows := [][]string{{"CHECK", "STATUS", "MESSAGE"}}
	for _, f := range r.Checks {
		rows = append(rows, []string{f.Check, string(f.Status), f.Message})
		if f.Impact != "" && !out.NoHeaders {
			fmt.Fprintf(&details, "\n%s\n  impact: %s\n  fix:    %s\n", f.Check, f.Impact, f.Fix)
		}
	}
	summary := fmt.Sprintf("%s: %s, %s", r.Node, text.Plural(r.Failures, "failure"), text.Plural(r.Warnings, "warning"))
	return out.Table([]string{summary}, rows) + details.String(), nil
}
