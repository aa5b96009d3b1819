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

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
)

// previewTimeout limits a listing: a driver may hang.
const previewTimeout = 10 * time.Second

// validate prints the device lists of a config on this node, and returns the exit status. Unknown keys, ignored by the daemon, are
// rejected: before a rollout the operator can still correct the file.
func (o *options) validate(ctx context.Context, stdout, stderr io.Writer) int {
	for _, key := range o.loaded.UnknownKeys {
		fmt.Fprintln(stderr, "podgauge:", key)
	}
	if len(o.loaded.UnknownKeys) > 0 {
		return exitUsage
	}
	for _, notice := range o.loaded.Notices {
		fmt.Fprintln(stdout, "note:", notice)
	}
	m, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err == nil {
		defer m.close()
		err = o.preview(ctx, m, stdout)
	}
	if err != nil {
		fmt.Fprintln(stdout, "The config is valid. The effect on this node is unknown:", err)
	}
	return exitOK
}

// preview prints the device lists of the node's devices.
func (o *options) preview(ctx context.Context, m *Hardware, stdout io.Writer) error {
	var devices []device.Device
	err, inTime := doctor.WithTimeout(ctx, previewTimeout, func(ctx context.Context) (err error) {
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
	channels, err := imexChannels(o.loaded.Settings)
	if err != nil {
		fmt.Fprintln(stdout, "note:", err)
	}
	lists, notes := pluginRules(o.loaded.Settings, nil, daemonState{imexChannels: channels}).Preview(statuses)
	for _, note := range notes {
		fmt.Fprintln(stdout, "note:", note)
	}
	rows := [][]string{{"RESOURCE", "DEVICES", "IDS"}}
	for _, list := range lists {
		ids := strings.Trim(fmt.Sprint(list.IDs), "[]")
		rows = append(rows, []string{list.Resource, strconv.Itoa(len(list.IDs)), ids})
	}
	_, err = io.WriteString(stdout, formatTable(rows))
	return err
}
