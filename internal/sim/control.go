package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"
)

// controlAddress is an abstract unix socket. The container of podgauge-sim has a read-only file system, and `kubectl exec` runs in the
// network namespace of the pod.
const controlAddress = "@podgauge-sim"

// Limits of a connection to a Control.
const (
	maxControlRequest = 4 << 10
	controlTimeout    = 5 * time.Second
)

// Control runs actions of SendAction on a machine with a real kubelet.
type Control struct {
	address string
	node    VirtualNode // without kubelet
	log     *slog.Logger
}

// NewControl returns the control of a machine.
func NewControl(m *Machine, log *slog.Logger) *Control {
	return &Control{address: controlAddress, node: VirtualNode{Machine: m}, log: log}
}

// Run answers connections until ctx is done. A socket in use, of a second podgauge-sim in the same network namespace, is logged.
func (c *Control) Run(ctx context.Context) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", c.address)
	if err != nil {
		c.log.Warn("cannot receive actions of podgauge simulate", "err", err)
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
			return fmt.Errorf("accept a simulated action: %w", err)
		}
		c.handle(ctx, conn)
	}
}

// Close does nothing: the socket has no file.
func (c *Control) Close() {}

// handle runs the action of a connection, and responds with the error or nothing.
func (c *Control) handle(ctx context.Context, conn net.Conn) {
	defer conn.Close()                               //nolint:errcheck // the response is written
	conn.SetDeadline(time.Now().Add(controlTimeout)) //nolint:errcheck // the connection is open
	request, err := io.ReadAll(io.LimitReader(conn, maxControlRequest))
	if err == nil {
		err = c.runAction(ctx, strings.Fields(string(request)))
	}
	if err != nil {
		io.WriteString(conn, err.Error()) //nolint:errcheck // the client is gone
	}
}

func (c *Control) runAction(ctx context.Context, words []string) error {
	if len(words) == 0 {
		return errors.New("want an action")
	}
	step, err := parseAction(words)
	if err != nil {
		return err
	}
	c.log.Info("simulated: "+step.Action, "args", strings.Join(step.Args, " "))
	return scriptActions[step.Action].run(ctx, &c.node, step.Args)
}

// SendAction runs an action of a script on the machine of the podgauge-sim in this network namespace: "xid", "0", "79".
func SendAction(ctx context.Context, words []string) error {
	return sendAction(ctx, controlAddress, words)
}

func sendAction(ctx context.Context, address string, words []string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", address)
	if err != nil {
		return fmt.Errorf("reach podgauge-sim --simulate=hardware: %w", err)
	}
	defer conn.Close()                               //nolint:errcheck // the response is read
	conn.SetDeadline(time.Now().Add(controlTimeout)) //nolint:errcheck // the connection is open
	if _, err := io.WriteString(conn, strings.Join(words, " ")); err != nil {
		return fmt.Errorf("send action: %w", err)
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return fmt.Errorf("send action: %w", err)
	}
	response, err := io.ReadAll(conn)
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}
	if len(response) > 0 {
		return errors.New(string(response))
	}
	return nil
}
