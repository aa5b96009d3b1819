package app

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
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
)

const maxDeviceResponse = 1 << 20

// deviceCommand is a command of `podgauge device`.
type deviceCommand struct {
	deviceRequest
	stateDir string
}

const deviceHelp = `Take a GPU or a MIG device out of service, return it to service, or forget a removed GPU.

DEVICE is a UUID, a GPU index, or GPU:MIG from podgauge status. A retired device is unhealthy for the kubelet until you trust
it. The command trust also clears a fault that was reported earlier, if a check of the GPU passes now. The command forget makes
podgauge ready without a GPU that was removed from the node; DEVICE is the UUID, from /readyz.`

// newDeviceCommand returns the commands of `podgauge device`.
func newDeviceCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "device", Short: "Take a device out of service, return it to service, or forget it", Long: deviceHelp,
		Example: "  podgauge device retire 3 --reason 'fan is noisy, ticket 4711'\n  podgauge device trust 3\n  podgauge device forget GPU-5f0a…",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("expected podgauge device retire DEVICE --reason=…, podgauge device trust DEVICE, or podgauge device forget DEVICE")
		},
	}
	for action, short := range map[string]string{
		actionRetire: "Take a device out of service", actionTrust: "Return a device to service", actionForget: "Forget a GPU that was removed",
	} {
		request := deviceCommand{deviceRequest: deviceRequest{Action: action}}
		c := &cobra.Command{Use: action + " DEVICE", Short: short, Long: deviceHelp, Example: parent.Example}
		if action == actionRetire {
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
	return parent
}

// complete checks the arguments.
func (c *deviceCommand) complete(args []string, proc string) error {
	if len(args) != 1 {
		return errors.New("expected one device")
	}
	c.Device = args[0]
	c.stateDir = cmp.Or(c.stateDir, flagValue(daemonFlags(proc), "state-dir"), defaultStateDir)
	return c.check()
}

// run sends the request and prints the response. A trusted device that is not healthy is a failure, too.
func (c *deviceCommand) run(ctx context.Context, stdout io.Writer) error {
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
func (c *deviceCommand) send(ctx context.Context) (r deviceResponse, err error) {
	path := filepath.Join(c.stateDir, socketName)
	body, _ := json.Marshal(c.deviceRequest) // all fields can be encoded
	ctx, cancel := context.WithTimeout(ctx, deviceActionTimeout+requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://podgauge"+devicePath, bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	resp, err := socketTransport(c.stateDir).RoundTrip(req)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return r, fmt.Errorf("no socket %s: run podgauge with --state-dir=%s, or set --state-dir to the daemon's folder", path, c.stateDir)
	case errors.Is(err, syscall.ECONNREFUSED):
		return r, fmt.Errorf("podgauge is not running: no process listens at %s", path)
	case errors.Is(err, os.ErrPermission):
		return r, fmt.Errorf("%s: permission denied: run as root", path)
	case err != nil:
		return r, fmt.Errorf("connect to podgauge: %w", cmp.Or(text.CheckSocketPath(path), err))
	}
	defer resp.Body.Close() //nolint:errcheck // opened for reading
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxDeviceResponse)).Decode(&r); err != nil {
		return r, fmt.Errorf("read response of %s: %w", path, err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}
