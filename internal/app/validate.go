package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/pflag"
)

// previewTimeout limits a listing: a driver may hang.
const previewTimeout = 10 * time.Second

// setConfigFile reads the FILE of validate.
func (o *options) setConfigFile(f *pflag.FlagSet, args []string) error {
	if len(args) > 0 {
		if f.Changed("config-file") {
			return errors.New("FILE and --config-file: set only one of them")
		}
		if err := f.Set("config-file", args[0]); err != nil {
			return err
		}
	}
	location, err := o.builder.Location()
	if err == nil && location.File == "" {
		err = errors.New("no config: set FILE, --config-file or CONFIG_FILE")
	}
	return err
}

// validate prints the settings of a config, and the device lists on this node.
// Unknown keys, ignored by the daemon, are rejected: before a rollout the
// operator can still correct the file.
func (o *options) validate(ctx context.Context, stdout io.Writer) error {
	if unknown := o.loaded.UnknownKeys; len(unknown) > 0 {
		lines := make([]string, len(unknown))
		for i, key := range unknown {
			lines[i] = key.String()
		}
		return errors.New(strings.Join(lines, "; "))
	}
	fmt.Fprintln(stdout, "The config is valid.")
	for _, notice := range o.loaded.Notices {
		fmt.Fprintln(stdout, "note:", notice)
	}
	if given := o.loaded.Summary(); len(given) == 0 {
		fmt.Fprintln(stdout, "All settings have their defaults.")
	} else {
		rows := [][]string{{"SETTING", "VALUE", "FROM"}}
		for _, s := range given {
			rows = append(rows, []string{s.Name, s.Value, s.Origin})
		}
		fmt.Fprintf(stdout, "\n%s\n", cli.FormatTable(rows))
	}
	m, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err == nil {
		defer m.close()
		err = o.preview(ctx, m, stdout)
	}
	if err != nil {
		return cli.Failed(fmt.Errorf("the effect on this node is unknown: %w", err))
	}
	return nil
}

// preview prints the device lists of the node's devices.
func (o *options) preview(ctx context.Context, m *Hardware, stdout io.Writer) error {
	var devices []device.Device
	err, inTime := retry.WithTimeout(ctx, previewTimeout, func(ctx context.Context) (err error) {
		devices, err = m.Devices(ctx)
		return err
	})
	switch {
	case !inTime:
		return errors.New("the driver does not respond")
	case devices == nil && err != nil:
		return err
	case err != nil: // on omitted devices
		fmt.Fprintln(stdout, "note:", err)
	}
	statuses := make([]device.Status, len(devices))
	for i, d := range devices {
		statuses[i] = device.Status{Device: d, Healthy: true}
	}
	channels, err := rules.IMEXChannels(o.loaded.Settings)
	if err != nil {
		fmt.Fprintln(stdout, "note:", err)
	}
	lists, notes := rules.Preview(o.loaded.Settings, channels).Preview(statuses)
	for _, note := range notes {
		fmt.Fprintln(stdout, "note:", note)
	}
	rows := [][]string{{"RESOURCE", "DEVICES", "IDS"}}
	for _, list := range lists {
		ids := make([]string, len(list.IDs))
		for i, id := range list.IDs {
			ids[i] = string(id)
		}
		rows = append(rows, []string{list.Resource, strconv.Itoa(len(ids)), text.JoinFirst(ids)})
	}
	_, err = io.WriteString(stdout, cli.FormatTable(rows))
	return err
}
