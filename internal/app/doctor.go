package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/containers"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml/cdi"
)

// diagnosis is what `podgauge doctor -o json` says.
type diagnosis struct {
	Node     string           `json:"node"`
	Version  string           `json:"version"`
	Failures int              `json:"failures"`
	Warnings int              `json:"warnings"`
	Checks   []doctor.Finding `json:"checks"`
}

// doWithout has doctor go on where it is the config that is wrong, and not the command line:
// that is one of the things to be found.
func (o *options) doWithout(wrong error) error {
	if !o.examines {
		return wrong
	}
	source, err := o.builder.Source()
	if err != nil || source.File == "" {
		return wrong
	}
	if o.loaded, err = o.builder.LoadFrom(config.Source{}); err != nil {
		return err
	}
	o.configErr = wrong
	return nil
}

// called is how the command is named before what it complains of.
func (o *options) called() string {
	if o.examines {
		return "podgauge doctor"
	}
	return "podgauge"
}

func (o *options) checkDoctor() error {
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("--output %q: want table or json", o.output)
	}
	return nil
}

// doctor looks at the node, and returns the exit status.
func (o *options) doctor(ctx context.Context, lookupEnv lookup, stdout, stderr io.Writer) int {
	d := diagnosed(o.hostname, doctor.Examine(ctx, o.examination(lookupEnv)))
	if ctx.Err() != nil { // who was not waited for is not slow
		fmt.Fprintln(stderr, "podgauge doctor: interrupted")
		return exitError
	}
	text, err := d.text(o.output, isTerminal(stdout), lookupEnv)
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

// examination says what there is to look at.
func (o *options) examination(lookupEnv lookup) doctor.Options {
	s := o.loaded.Settings
	source, _ := o.builder.Source() // it was read before
	e := doctor.Options{
		Config: source.File, ConfigErr: o.configErr, Notices: o.loaded.Notices,
		MountedDriverRoot: s.ContainerDriverRoot, DevRoot: devRoot(s), AnswersNodes: s.PassDeviceSpecs || usesCDI(s), Offered: offeredBy(s),
		KubeletDir: o.kubeletDir, DevicePluginDir: o.devicePluginDir, Offers: o.devicePlugin,
		PodLogsDir: o.podLogsDir, KernelLog: o.health.kernelLog, StateDir: o.health.stateDir,
		ProcessesSeen: containers.New(containers.Options{Log: slog.New(slog.DiscardHandler)}).Visible(),
		LookupEnv:     lookupEnv,
		Driver:        o.platform.Driver(driverRoots(s)),
	}
	for _, key := range o.loaded.UnknownKeys {
		e.UnknownKeys = append(e.UnknownKeys, key.String())
	}
	if usesCDI(s) {
		e.CDIDir = cdi.DefaultDir
	}
	return e
}

// offeredBy says by resource which ids settings have of devices that are well.
func offeredBy(s config.Settings) func([]device.Device) map[string][]device.OfferedID {
	return func(devices []device.Device) map[string][]device.OfferedID {
		statuses := make([]device.Status, len(devices))
		for i, d := range devices {
			statuses[i] = device.Status{Device: d, Healthy: true}
		}
		offers, _ := previewed(s, nil, statuses)
		ids := make(map[string][]device.OfferedID, len(offers))
		for _, offer := range offers {
			ids[offer.Resource] = offer.IDs
		}
		return ids
	}
}

func diagnosed(node string, findings []doctor.Finding) diagnosis {
	d := diagnosis{Node: node, Version: version, Checks: findings}
	for _, f := range findings {
		switch f.Verdict {
		case doctor.Failure:
			d.Failures++
		case doctor.Warning:
			d.Warnings++
		case doctor.OK, doctor.Skipped:
		}
	}
	return d
}

func (d *diagnosis) text(output string, terminal bool, lookupEnv lookup) (string, error) {
	if output == "json" {
		body, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return "", err
		}
		if terminal {
			return printableLines(string(body)) + "\n", nil
		}
		return string(body) + "\n", nil
	}
	noColour, _ := lookupEnv("NO_COLOR")
	return d.table(terminal && noColour == ""), nil
}

// table has a line for each check, and below what is to be done.
func (d *diagnosis) table(coloured bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s, %s\n", printable(d.Node), number(d.Failures, "failure"), number(d.Warnings, "warning"))
	t := table{head("CHECK", "VERDICT", "FOUND")}
	for _, f := range d.Checks {
		t = append(t, []cell{{text: f.Check}, {string(f.Verdict), verdictColours[f.Verdict]}, {text: f.Found}})
	}
	t.write(&text, coloured)
	for _, f := range d.Checks {
		if f.Why == "" {
			continue
		}
		fmt.Fprintf(&text, "\n%s\n  why:  %s\n  mend: %s\n", printable(f.Check), printable(f.Why), printable(f.Mend))
	}
	return text.String()
}

var verdictColours = map[doctor.Verdict]colour{doctor.Failure: red, doctor.Warning: yellow}

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
