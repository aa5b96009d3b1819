package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"golang.org/x/net/netutil"
)

const (
	// socketName is the socket of operator commands in the state folder. Only
	// root can connect.
	socketName = "podgauge.sock"
	// operatorPath is the path of commands that change something. The other paths
	// of the socket are those of the JSON API.
	operatorPath = "/operator"

	maxSocketConns      = 4 // further connections wait
	socketRetryInterval = 10 * time.Second
)

// serveSocket serves operator commands and the JSON API at the socket in the
// state folder until ctx is done. A folder that cannot be written affects
// nothing else.
func (a *app) serveSocket(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("POST "+operatorPath, &operator.CommandHandler{
		State: a.node, Monitor: a.monitor, Missing: a.checkDevices, Store: a.store, Log: a.log,
	})
	mux.Handle(api.Root, a.metrics.APIHandler())
	path := filepath.Join(a.o.health.stateDir, socketName)
	logged := ""
	for ctx.Err() == nil {
		server := newHTTPServer(mux, a.log)
		server.BaseContext = func(net.Listener) context.Context { return ctx }
		err := serveHTTP(ctx, server, "commands", func() error {
			l, err := listenSocket(path)
			if err != nil {
				return err
			}
			return server.Serve(netutil.LimitListener(l, maxSocketConns))
		})
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			a.log.Warn("cannot serve the socket of podgauge commands", "socket", path, "err", err)
		}
		retry.Sleep(ctx, socketRetryInterval) //nolint:errcheck // the loop ends
	}
	return nil
}

// listenSocket replaces the socket of an earlier process. Before Chmod, the
// umask of a container (022) lets only root connect.
func listenSocket(path string) (net.Listener, error) {
	if err := text.CheckSocketPath(path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // a later process may have replaced the socket
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close() //nolint:errcheck // without a connection
		return nil, err
	}
	return l, nil
}

// store waits until health and incidents are on disk.
func (a *app) store(ctx context.Context) error {
	a.incidents.Flush()
	return a.state.Wait(ctx)
}
