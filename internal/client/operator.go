package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/cobra"
)

// operatorCommand is a command of `podgauge device` or `podgauge driver`.
type operatorCommand struct {
	operator.Request
	stateDir string
}

const deviceHelp = `Take a GPU or a MIG device out of service, return it to service, or forget a removed GPU.

DEVICE is a UUID, a GPU index, or GPU:MIG from podgauge status. A retired device is unhealthy for the
kubelet until you trust it. The command trust also clears a fault that was reported earlier, if a check
of the GPU passes now. The command forget makes podgauge ready without a GPU that was removed from the
node; DEVICE is the UUID, from /readyz.`

const driverHelp = `Release the driver, so that you can reset a GPU, switch its MIG mode or replace the driver, and
resume.

The command release returns when no call to the driver runs and the library is closed. Until resume, all
devices are unhealthy.`

// NewDeviceCommand returns the commands of `podgauge device`.
func NewDeviceCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "device", Short: "Take a device out of service, return it to service, or forget it", Long: deviceHelp,
		Example: "  podgauge device retire 3 --reason 'fan is noisy, ticket 4711'\n" +
			"  podgauge device trust 3\n  podgauge device forget GPU-5f0a…",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("expected podgauge device retire DEVICE --reason=…, podgauge device trust DEVICE, " +
				"or podgauge device forget DEVICE")
		},
	}
	addOperatorCommand(parent, operator.Retire, operator.Retire+" DEVICE", "Take a device out of service")
	addOperatorCommand(parent, operator.Trust, operator.Trust+" DEVICE", "Return a device to service")
	addOperatorCommand(parent, operator.Forget, operator.Forget+" DEVICE", "Forget a GPU that was removed")
	return parent
}

// NewDriverCommand returns the commands of `podgauge driver`.
func NewDriverCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "driver", Short: "Release the driver for a reset of a GPU, or resume", Long: driverHelp,
		Example: "  podgauge driver release\n  podgauge driver resume",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("expected podgauge driver release or podgauge driver resume")
		},
	}
	addOperatorCommand(parent, operator.Release, operator.Release, "Release the driver")
	addOperatorCommand(parent, operator.Resume, operator.Resume, "Use the driver again")
	return parent
}

func addOperatorCommand(parent *cobra.Command, action, use, short string) {
	request := operatorCommand{Request: operator.Request{Action: action}}
	c := &cobra.Command{Use: use, Short: short, Long: parent.Long, Example: parent.Example}
	if action == operator.Retire {
		c.Flags().StringVar(&request.Reason, "reason", "", "why the device is retired, in one `line`; required")
	}
	addStateDirFlag(c.Flags(), &request.stateDir)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := request.complete(args, "/proc"); err != nil {
			return err
		}
		return request.run(c.Context(), c.OutOrStdout())
	}
	parent.AddCommand(c)
}

// complete checks the arguments.
func (c *operatorCommand) complete(args []string, proc string) error {
	switch needsDevice := c.Action != operator.Release && c.Action != operator.Resume; {
	case needsDevice && len(args) != 1:
		return errors.New("expected one device")
	case needsDevice:
		c.Device = args[0]
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	c.stateDir = cmp.Or(c.stateDir, flagValue(daemonFlags(proc), "state-dir"), defaultStateDir)
	return c.Check()
}

// run sends the request and prints the response. A trusted device that is not
// healthy is a failure, too.
func (c *operatorCommand) run(ctx context.Context, stdout io.Writer) error {
	r, err := c.send(ctx)
	if err != nil {
		return cli.Failed(err)
	}
	for _, line := range r.Lines {
		fmt.Fprintln(stdout, text.Printable(line))
	}
	if r.Holds {
		return cli.ErrReported
	}
	return nil
}

// send sends the request to the daemon.
func (c *operatorCommand) send(ctx context.Context) (r operator.Response, err error) {
	path := filepath.Join(c.stateDir, operator.SocketName)
	body, _ := json.Marshal(c.Request) // all fields can be encoded
	ctx, cancel := context.WithTimeout(ctx, operator.Timeout+requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://podgauge"+operator.Path, bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	resp, err := socketTransport(c.stateDir).RoundTrip(req)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return r, fmt.Errorf("no socket %s: run podgauge with --state-dir=%s, "+
			"or set --state-dir to the daemon's folder", path, c.stateDir)
	case errors.Is(err, syscall.ECONNREFUSED):
		return r, fmt.Errorf("podgauge is not running: no process listens at %s", path)
	case errors.Is(err, os.ErrPermission):
		return r, fmt.Errorf("%s: permission denied: run as root", path)
	case err != nil:
		return r, fmt.Errorf("connect to podgauge: %w", cmp.Or(text.CheckSocketPath(path), err))
	}
	defer resp.Body.Close() //nolint:errcheck // opened for reading
	var response struct {
		operator.Response
		api.ErrorResponse
	}
	if err := json.NewDecoder(resp.Body).Decode(&response); err != nil {
		return r, fmt.Errorf("read response of %s: %w", path, err)
	}
	if response.Error != "" {
		return r, errors.New(response.Error)
	}
	return response.Response, nil
}
