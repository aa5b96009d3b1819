// Package validate checks a config, and shows its effect on a node.
package validate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/internal/text"
)

// previewTimeout limits a listing: a driver may hang.
const previewTimeout = 10 * time.Second

// Settings prints the settings of a config. Unknown keys, ignored by the daemon,
// are rejected: before a rollout the operator can still correct the file.
func Settings(loaded *config.Loaded, stdout io.Writer) error {
	if unknown := loaded.UnknownKeys; len(unknown) > 0 {
		return errors.New(strings.Join(text.Each(unknown, config.UnknownKey.String), "; "))
	}
	fmt.Fprintln(stdout, "The config is valid.")
	for _, notice := range loaded.Notices {
		fmt.Fprintln(stdout, "note:", notice)
	}
	if given := loaded.Summary(); len(given) == 0 {
		fmt.Fprintln(stdout, "All settings have their defaults.")
	} else {
		rows := [][]string{{"SETTING", "VALUE", "FROM"}}
		for _, s := range given {
			rows = append(rows, []string{s.Name, s.Value, s.Origin})
		}
		fmt.Fprintf(stdout, "\n%s\n", cli.FormatTable(rows))
	}
	return nil
}

// Preview prints the device lists of the node's devices.
func Preview(ctx context.Context, driver device.Backend, s config.Settings, stdout io.Writer) error {
	var devices []device.Device
	err, inTime := retry.WithTimeout(ctx, previewTimeout, func(ctx context.Context) (err error) {
		devices, err = driver.Devices(ctx)
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
	channels, err := rules.IMEXChannels(s)
	if err != nil {
		fmt.Fprintln(stdout, "note:", err)
	}
	lists, notes := rules.Preview(s, channels).Preview(statuses)
	for _, note := range notes {
		fmt.Fprintln(stdout, "note:", note)
	}
	rows := [][]string{{"RESOURCE", "DEVICES", "IDS"}}
	for _, list := range lists {
		ids := text.Each(list.IDs, func(id device.AdvertisedID) string { return string(id) })
		rows = append(rows, []string{list.Name, strconv.Itoa(len(ids)), text.JoinFirst(ids)})
	}
	_, err = io.WriteString(stdout, cli.FormatTable(rows))
	return err
}
