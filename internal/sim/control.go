package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"
)

// ControlAddress is an abstract unix socket, because the container of
// podgauge-sim has a read-only file system.
const ControlAddress = "@podgauge-sim"

const controlTimeout = 5 * time.Second // of a connection, because others wait

// Control runs actions of SendAction on a machine with a real kubelet.
type Control struct {
	Address string
	Machine *Machine
	Log     *slog.Logger
}

// Run answers a connection at a time until ctx is done. If a second
// podgauge-sim in the same network namespace uses the socket, Run logs a
// warning and only waits.
func (c *Control) Run(ctx context.Context) error {
	l, err := net.Listen("unix", c.Address)
	if err != nil {
		c.Log.Warn("cannot receive simulated actions", "err", err)
		<-ctx.Done()
		return nil
	}
	defer context.AfterFunc(ctx, func() { l.Close() })() //nolint:errcheck // Accept returns
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("receive simulated actions: %w", err)
		}
		conn.SetDeadline(time.Now().Add(controlTimeout)) //nolint:errcheck // the connection is open
		if err := c.runAction(ctx, conn); err != nil {
			io.WriteString(conn, err.Error()) //nolint:errcheck // the client is gone
		}
		conn.Close() //nolint:errcheck // the response is written
	}
}

// runAction runs a line of a script without the time.
func (c *Control) runAction(ctx context.Context, request io.Reader) error {
	line, _ := bufio.NewReader(request).ReadString('\n') // no action is an error
	script, err := ReadScript(strings.NewReader("0s " + line))
	if err != nil {
		return err
	}
	step := script.Steps[0]
	c.Log.Info("simulated: "+step.Action, "args", strings.Join(step.Args, " "))
	return step.RunOn(ctx, c.Machine)
}

// Close does nothing: the socket has no file.
func (c *Control) Close() {}

// SendAction runs an action of a script on the machine of a Control: "xid",
// "0", "79".
func SendAction(address string, words []string) error {
	conn, err := net.Dial("unix", address)
	if err != nil {
		return fmt.Errorf("reach podgauge-sim --simulate=hardware: %w", err)
	}
	defer conn.Close()                           //nolint:errcheck // the response is read
	fmt.Fprintln(conn, strings.Join(words, " ")) //nolint:errcheck // without a request, there is no response
	response, err := io.ReadAll(conn)
	if len(response) > 0 {
		err = errors.New(string(response))
	}
	return err
}
