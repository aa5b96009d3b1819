package client

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/operator"
	"github.com/spf13/pflag"
)

const requestTimeout = 10 * time.Second

// defaultStateDir is the chart's --state-dir, on the node and in the container.
const defaultStateDir = "/var/lib/podgauge"

// addStateDirFlag declares the flag of the folder with the daemon's socket.
func addStateDirFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "state-dir", "",
		"`folder` of the daemon's --state-dir (default of the daemon in this container, or "+defaultStateDir+")")
}

// flagValue returns the last value of a flag among arguments; empty: not given.
func flagValue(args []string, name string) (value string) {
	for i, arg := range args {
		flag, text, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case flag != name || !strings.HasPrefix(arg, "-"):
		case inline:
			value = text
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// socketTransport returns a transport to the daemon's socket in a state folder,
// for every address.
func socketTransport(stateDir string) *http.Transport {
	path := filepath.Join(stateDir, operator.SocketName)
	dialer := net.Dialer{Timeout: requestTimeout}
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		},
	}
}

// localTransport returns a transport to the daemon's socket, which needs
// neither password nor certificate, and to the network if the socket cannot be
// reached: only root can connect, and a daemon without --state-dir has no
// socket.
func localTransport(stateDir string) http.RoundTripper {
	t, network := socketTransport(stateDir), net.Dialer{}
	socket := t.DialContext
	t.DialContext = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if conn, err := socket(ctx, protocol, address); err == nil {
			return conn, nil
		}
		return network.DialContext(ctx, protocol, address)
	}
	return t
}
