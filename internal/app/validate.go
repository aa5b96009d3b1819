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

// previewTimeout bounds a preview: what the config means is known without the driver.
const previewTimeout = 10 * time.Second

// validate prints what a config means on this node, without the kubelet, and returns the exit status.
// Unknown keys, which a daemon ignores, are rejected: here somebody can still correct them.
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
	hw, err := o.hardware(slog.New(slog.DiscardHandler))
	if err == nil {
		defer hw.close()
		err = o.preview(ctx, hw, stdout)
	}
	if err != nil {
		fmt.Fprintln(stdout, "The config is valid. What it means on this node cannot be said:", err)
	}
	return exitOK
}

// preview prints what would be offered of the devices that there are.
func (o *options) preview(ctx context.Context, hw *hardware, stdout io.Writer) error {
	devices, err := listed(ctx, hw)
	switch {
	case devices == nil && err != nil:
		return err
	case err != nil: // of devices that are left out
		fmt.Fprintln(stdout, "note:", err)
	}
	statuses := make([]device.Status, len(devices))
	for i, d := range devices {
		statuses[i] = device.Status{Device: d, Healthy: true}
	}
	channels, err := imex(o.loaded.Settings)
	if err != nil {
		fmt.Fprintln(stdout, "note:", err)
	}
	offers, notes := previewed(o.loaded.Settings, channels, statuses)
	table := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "RESOURCE\tDEVICES\tIDS")
	for _, offer := range offers {
		ids := make([]string, len(offer.IDs))
		for i, id := range offer.IDs {
			ids[i] = string(id)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\n", offer.Resource, len(offer.IDs), strings.Join(ids, " "))
	}
	for _, why := range notes {
		fmt.Fprintln(stdout, "note:", why)
	}
	return table.Flush()
}

// previewed is what would be offered, and in words what cannot be, or what is said
// of none of the devices: that is no error, since one file serves many nodes, but
// may be a name that nobody meant.
func previewed(s config.Settings, channels []int, statuses []device.Status) (offers []plugin.Offered, notes []string) {
	r := rules(s, nil, channels)
	share, named := r.Share, map[string]bool{}
	r.Share = func(resource string, devices []device.Device) []plugin.Share {
		named[resource] = true
		return share(resource, devices)
	}
	offers, notes = r.Preview(statuses)
	shared, _ := s.Sharing.Active()
	for _, resource := range shared.Resources {
		if !named[resource.Name] {
			notes = append(notes, "sharing: no device here is "+resource.Name)
		}
	}
	if len(offers) == 0 {
		notes = append(notes, "nothing would be offered")
	}
	return offers, notes
}

// listed lists the devices, or says that the driver does not answer.
func listed(ctx context.Context, hw *hardware) ([]device.Device, error) {
	type listing struct {
		devices []device.Device
		err     error
	}
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	done := make(chan listing, 1)
	go func() { // a listing that hangs ends with the process, which is about to
		devices, err := hw.Devices(ctx)
		done <- listing{devices, err}
	}()
	select {
	case l := <-done:
		return l.devices, l.err
	case <-ctx.Done():
		return nil, errors.New("the driver does not answer")
	}
}
