package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// previewTimeout limits a listing. The config is valid or not without the driver.
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
	nb, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err == nil {
		defer nb.close()
		err = o.preview(ctx, nb, stdout)
	}
	if err != nil {
		fmt.Fprintln(stdout, "The config is valid. The effect on this node is unknown:", err)
	}
	return exitOK
}

// preview prints the device lists of the node's devices.
func (o *options) preview(ctx context.Context, nb *nodeBackend, stdout io.Writer) error {
	devices, err := listDevices(ctx, nb)
	switch {
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
	lists, notes := previewLists(o.loaded.Settings, channels, statuses)
	tw := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "RESOURCE\tDEVICES\tIDS")
	for _, list := range lists {
		ids := make([]string, len(list.IDs))
		for i, id := range list.IDs {
			ids[i] = string(id)
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\n", list.Resource, len(list.IDs), strings.Join(ids, " "))
	}
	for _, note := range notes {
		fmt.Fprintln(stdout, "note:", note)
	}
	return tw.Flush()
}

// previewLists returns the device lists, and notes on devices or settings without effect. A file serves many nodes, so a setting
// without effect is no error, but maybe a typing error.
func previewLists(s config.Settings, channels []int, statuses []device.Status) (lists []plugin.ResourceIDs, notes []string) {
	r := pluginRules(s, nil, channels)
	share, seen := r.Sharing, map[string]bool{}
	r.Sharing = func(resource string, devices []device.Device) []plugin.Sharing {
		seen[resource] = true
		return share(resource, devices)
	}
	lists, notes = r.Preview(statuses)
	shared, _ := s.Sharing.Active()
	for _, resource := range shared.Resources {
		if !seen[resource.Name] {
			notes = append(notes, "sharing: no device of this node has the resource "+resource.Name)
		}
	}
	if len(lists) == 0 {
		notes = append(notes, "no device would be advertised")
	}
	return lists, notes
}

// listDevices lists the devices within previewTimeout.
func listDevices(ctx context.Context, nb *nodeBackend) ([]device.Device, error) {
	type result struct {
		devices []device.Device
		err     error
	}
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	done := make(chan result, 1)
	go func() { // ends with the listing, or with the process
		devices, err := nb.Devices(ctx)
		done <- result{devices, err}
	}()
	select {
	case l := <-done:
		return l.devices, l.err
	case <-ctx.Done():
		return nil, errors.New("driver does not respond")
	}
}
