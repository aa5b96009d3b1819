package operator

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/server"
	"golang.org/x/net/netutil"
)

const (
	// SocketName is the socket of commands in the state folder. Only root can
	// connect.
	SocketName = "podgauge.sock"
	// Path is the path of commands that change something. The other paths of the
	// socket are those of the JSON API.
	Path = "/operator"

	handOverPath        = "/hand-over"
	maxSocketConns      = 32 // further connections wait; watches must leave room for commands
	socketRetryInterval = 10 * time.Second
)

// ServeSocket serves commands and the JSON API at the socket in the state folder
// until ctx is done. A folder that cannot be written affects nothing else.
//
// A newer process, beside this one during an update with maxSurge, has the state
// file and the socket until it ends.
func ServeSocket(ctx context.Context, dir string, commands *CommandHandler, jsonAPI http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, commands)
	mux.HandleFunc("POST "+handOverPath, commands.handOver)
	mux.Handle(api.Root, jsonAPI)
	path := filepath.Join(dir, SocketName)
	logged := ""
	for ctx.Err() == nil {
		socket := server.New(mux, commands.Log)
		err := server.Serve(ctx, socket, "commands", func() error {
			l, err := listenSocket(path)
			if err != nil {
				return err
			}
			return socket.Serve(netutil.LimitListener(l, maxSocketConns))
		})
		if ctx.Err() == nil && errors.Is(err, http.ErrServerClosed) {
			pause := retry.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
			for conn := dial(ctx, path); conn != nil; conn = dial(ctx, path) { // a third process serves
				_ = errors.Join(conn.Close(), retry.Sleep(ctx, pause.Next()))
			}
			if ctx.Err() == nil {
				commands.Store.SetHandedOver(false)
				commands.Log.Warn("newer podgauge process has ended, storing state again")
			}
			continue
		}
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			commands.Log.Warn("cannot serve the socket of podgauge commands", "socket", path, "err", err)
		}
		retry.Sleep(ctx, socketRetryInterval) //nolint:errcheck // the loop ends
	}
	return nil
}

// handOver stores the state, and leaves the file to the client until the
// connection ends, also if the state cannot be stored: two processes must not
// replace each other's file. Then the server ends, because the client has
// replaced the socket.
func (h *CommandHandler) handOver(w http.ResponseWriter, r *http.Request) {
	if err := h.store(r.Context()); err != nil {
		h.Log.Warn("cannot store state for newer podgauge process", "err", err)
		api.WriteError(w, http.StatusConflict, err)
	}
	h.Store.SetHandedOver(true)
	h.Log.Info("newer podgauge process has taken over the state")
	conn := http.NewResponseController(w)
	// An error ends the connection.
	_ = errors.Join(conn.SetReadDeadline(time.Time{}), conn.SetWriteDeadline(time.Time{}), conn.Flush())
	<-r.Context().Done()
	r.Context().Value(http.ServerContextKey).(*http.Server).Close() //nolint:errcheck // nothing is left to do
}

// TakeOver makes the process that serves the socket in a folder store its state,
// and leave the state file to the caller until the result is closed. The result
// is nil if no process serves the socket. A failure to store is logged.
func TakeOver(dir string, log *slog.Logger) io.Closer {
	conn := dial(context.Background(), filepath.Join(dir, SocketName))
	if conn == nil {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(2 * storeTimeout)) // the read returns errors of all three
	_, _ = io.WriteString(conn, "POST "+handOverPath+" HTTP/1.1\r\nHost: podgauge\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		log.Warn("older podgauge process did not store its newest state", "err", err)
	}
	return conn
}

// dial connects to a socket; nil: no process listens, or the folder hangs.
func dial(ctx context.Context, path string) net.Conn {
	conn, _ := retry.WithTimeout(ctx, storeTimeout, func(context.Context) net.Conn {
		conn, _ := net.Dial("unix", path) // nil after an error
		return conn
	})
	return conn
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
