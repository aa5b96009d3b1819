package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/pflag"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
)

// maxConnections limits the connections of a listener; the kernel queues more.
// 200 slow clients leave room for scrapes and probes, and ReadHeaderTimeout
// soon makes more room. With 16 kB of headers and their buffers, all
// connections fit into the chart's 96 Mi.
const (
	maxConnections = 256
	sendBuffer     = 64 << 10
	sendTimeout    = 20 * time.Second
)

// webOptions are the flags of the HTTP server.
type webOptions struct {
	listenAddress string
	telemetryPath string
	configFile    string
	probeAddress  string
	pprof         bool
	access        accessOptions
}

func (o *webOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listenAddress, "web.listen-address", ":9400", "`address` of metrics, page, JSON API and probes")
	f.StringVar(&o.telemetryPath, "web.telemetry-path", "/metrics", "`path` of the metrics")
	f.StringVar(&o.configFile, "web.config.file", "", "`file` with TLS and passwords, in the format of Prometheus exporters")
	f.StringVar(&o.probeAddress, "web.probe-address", "", "`address` of a second server with the probes only, in plain HTTP regardless of --web.config.file; empty: no second server")
	o.access.addFlags(f)
	f.BoolVar(&o.pprof, "web.enable-pprof", false, "serve Go's profiles under /debug/pprof/")
}

func (o *webOptions) check() error {
	if err := checkAddress(o.listenAddress); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", o.listenAddress, err)
	}
	if err := o.checkPath(); err != nil {
		return fmt.Errorf("--web.telemetry-path %q: %w", o.telemetryPath, err)
	}
	if err := web.Validate(o.configFile); err != nil {
		return fileError("--web.config.file", o.configFile, err)
	}
	if err := checkAddress(o.probeAddress); err != nil && o.probeAddress != "" {
		return fmt.Errorf("--web.probe-address %q: %w", o.probeAddress, err)
	}
	return o.access.check()
}

// fileError returns a library's error on a file as a single line.
func fileError(flag, file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok && pathErr.Path == file {
		err = pathErr.Err // without a second name
	}
	return fmt.Errorf("%s %q: %s", flag, file, text.Printable(strings.Join(strings.Fields(text.YAMLError(err)), " ")))
}

// checkAddress checks the port of an address. Port 0 is any free port.
func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("expected host:port or :port")
	}
	if port == "" {
		return errors.New("expected a port")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: not a port", port)
	}
	return nil
}

// checkPath checks whether the HTTP server accepts the path, and whether the path is unused.
func (o *webOptions) checkPath() error {
	switch p := o.telemetryPath; {
	case !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "{} ?#%"):
		return errors.New("expected a path that begins with /")
	case path.Clean(p) != p:
		return fmt.Errorf("expected %s", path.Clean(p))
	case p == "/healthz" || p == "/readyz":
		return errors.New("reserved for a probe")
	case strings.HasPrefix(p+"/", "/api/"):
		return errors.New("reserved for the JSON API")
	case p == "/debug/pprof" || strings.HasPrefix(p, "/debug/pprof/"):
		return errors.New("reserved for profiles")
	}
	return nil
}

// readyURL returns the address of /readyz on this machine; empty if it requires a certificate or password.
func (o *webOptions) readyURL() string {
	if o.probeAddress == "" && o.configFile != "" {
		return ""
	}
	host, port, _ := net.SplitHostPort(cmp.Or(o.probeAddress, o.listenAddress)) // checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/readyz"
}

// listeners are the sockets of the process.
type listeners struct {
	main   net.Listener
	probes net.Listener // nil: without --web.probe-address
}

// listenTCP listens with a limit of connections. The kernel keeps at most twice
// sendBuffer unsent for a slow reader, and resets the connection after
// sendTimeout. Its defaults are megabytes and minutes, in podgauge's memory.
func listenTCP(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)                              //nolint:errcheck // the default remains
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(sendTimeout.Milliseconds())) //nolint:errcheck // likewise
		})
	}}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(l, maxConnections), nil
}

// listen opens the sockets. After an error the process ends, and closes them.
func (o *webOptions) listen() (l listeners, err error) {
	if l.main, err = listenTCP(o.listenAddress); err != nil {
		return l, fmt.Errorf("serve metrics: %w", err)
	}
	if o.probeAddress != "" {
		if l.probes, err = listenTCP(o.probeAddress); err != nil {
			return l, fmt.Errorf("serve probes: %w", err)
		}
	}
	return l, nil
}

// serveTasks returns the tasks of the HTTP servers.
func (o *webOptions) serveTasks(metrics *exporter.Exporter, s exporter.HandlerOptions, l listeners, log *slog.Logger) []func(context.Context) error {
	mainServer := newHTTPServer(o.access.restrict(metrics.Handler(s), o.telemetryPath), log)
	tasks := []func(context.Context) error{func(ctx context.Context) error {
		return serveHTTP(ctx, mainServer, "metrics", func() error { return o.serve(mainServer, l.main, log.With("component", "web")) })
	}}
	if l.probes == nil {
		return tasks
	}
	log.Info("serving probes", "address", l.probes.Addr().String())
	probeServer := newHTTPServer(s.Probes(), log)
	return append(tasks, func(ctx context.Context) error {
		return serveHTTP(ctx, probeServer, "probes", func() error { return probeServer.Serve(l.probes) })
	})
}

// newHTTPServer returns an HTTP/1 server with timeouts. HTTP/2 allows 250
// requests on a connection, and releases waiting requests late.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		Protocols:         http1,
		ReadHeaderTimeout: 5 * time.Second,
		// No shorter than an answer may take: when it ends, so does the context of the request.
		ReadTimeout:    time.Minute,
		WriteTimeout:   time.Minute,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// serve serves with the TLS and passwords of --web.config.file. The toolkit
// reads the file for each request and handshake: an invalid file costs the
// request, or the connection, and a line in the log.
func (o *webOptions) serve(server *http.Server, l net.Listener, log *slog.Logger) error {
	if o.configFile == "" {
		return server.Serve(l)
	}
	defer l.Close() //nolint:errcheck // Serve has closed l, unless the file is invalid
	return web.Serve(l, server, &web.FlagConfig{WebConfigFile: &o.configFile}, log)
}

// serveHTTP serves until ctx is done, and then completes running requests within shutdownTimeout.
func serveHTTP(ctx context.Context, server *http.Server, what string, serve func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }() // ends with Shutdown or Close
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", what, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close() //nolint:errcheck // the listener is closed
	}
	select {
	case <-served: //nolint:errcheck // http.ErrServerClosed
	case <-grace.Done(): // the folder of a socket hangs
	}
	return nil
}
