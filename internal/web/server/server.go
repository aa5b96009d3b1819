// Package server is podgauge's HTTP server: addresses, TLS, passwords and access.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/text"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/pflag"
	"golang.org/x/net/netutil"
	"golang.org/x/net/publicsuffix"
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

// shutdownTimeout limits the wait for running requests at the end.
const shutdownTimeout = 3 * time.Second

// Options are the flags of the HTTP server.
type Options struct {
	ListenAddress string
	TelemetryPath string
	ConfigFile    string
	ProbeAddress  string
	Pprof         bool
	MetricsOnly   bool
	AllowedHosts  []string // besides addresses and private names
	Node          string   // name of the node
}

// AddFlags declares the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ListenAddress, "web.listen-address", ":9400", "`address` of metrics, page, JSON API and probes")
	f.StringVar(&o.TelemetryPath, "web.telemetry-path", "/metrics", "`path` of the metrics")
	f.StringVar(&o.ConfigFile, "web.config.file", "",
		"`file` with TLS and passwords, in the format of Prometheus exporters")
	f.StringVar(&o.ProbeAddress, "web.probe-address", "",
		"`address` of a second server with the probes only, in plain HTTP regardless of "+
			"--web.config.file; empty: no second server")
	f.BoolVar(&o.MetricsOnly, "web.metrics-only", false,
		"serve only metrics and probes on the network; the commands on the node still work")
	f.StringSliceVar(&o.AllowedHosts, "web.allowed-hosts", nil,
		"more `names` by which clients reach podgauge, in public domains; addresses, "+
			"the node's name and names of the cluster are always allowed")
	f.BoolVar(&o.Pprof, "web.enable-pprof", false, "serve Go's profiles under /debug/pprof/")
}

// Check checks addresses, path and files.
func (o *Options) Check() error {
	if err := text.CheckAddress(o.ListenAddress); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", o.ListenAddress, err)
	}
	if err := o.checkPath(); err != nil {
		return fmt.Errorf("--web.telemetry-path %q: %w", o.TelemetryPath, err)
	}
	if err := web.Validate(o.ConfigFile); err != nil {
		return text.FileError("--web.config.file", o.ConfigFile, err)
	}
	if err := text.CheckAddress(o.ProbeAddress); err != nil && o.ProbeAddress != "" {
		return fmt.Errorf("--web.probe-address %q: %w", o.ProbeAddress, err)
	}
	for _, name := range o.AllowedHosts {
		if name == "" || strings.ContainsAny(name, "/:* ") {
			return fmt.Errorf("--web.allowed-hosts %q: expected a host name", name)
		}
	}
	return nil
}

// checkPath checks whether the HTTP server accepts the path, and whether the
// path is unused.
func (o *Options) checkPath() error {
	switch p := o.TelemetryPath; {
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

// ReadyURL returns the address of /readyz on this machine; empty if it requires
// a certificate or password.
func (o *Options) ReadyURL() string {
	if o.ProbeAddress == "" && o.ConfigFile != "" {
		return ""
	}
	host, port, _ := net.SplitHostPort(cmp.Or(o.ProbeAddress, o.ListenAddress)) // checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/readyz"
}

// Listeners are the sockets of the process.
type Listeners struct {
	Main   net.Listener
	Probes net.Listener // nil: without --web.probe-address
}

// listenTCP listens with a limit of connections. The kernel keeps at most twice
// sendBuffer unsent for a slow reader, and resets the connection after
// sendTimeout. Its defaults are megabytes and minutes, in podgauge's memory.
func listenTCP(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) {
			timeout := int(sendTimeout.Milliseconds())
			// After an error, the defaults remain.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, timeout)
		})
	}}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(l, maxConnections), nil
}

// Listen opens the sockets. After an error the process ends, and closes them.
func (o *Options) Listen() (l Listeners, err error) {
	if l.Main, err = listenTCP(o.ListenAddress); err != nil {
		return l, fmt.Errorf("serve metrics: %w", err)
	}
	if o.ProbeAddress != "" {
		if l.Probes, err = listenTCP(o.ProbeAddress); err != nil {
			return l, fmt.Errorf("serve probes: %w", err)
		}
	}
	return l, nil
}

// Tasks returns the tasks of the servers of a handler, and of the probes.
func (o *Options) Tasks(l Listeners, handler, probes http.Handler, log *slog.Logger) []func(context.Context) error {
	main := New(o.restrict(handler), log)
	serveMain := func() error { return o.serve(main, l.Main, log.With("component", "web")) }
	tasks := []func(context.Context) error{
		func(ctx context.Context) error { return Serve(ctx, main, "metrics", serveMain) },
	}
	if l.Probes == nil {
		return tasks
	}
	log.Info("serving probes", "address", l.Probes.Addr().String())
	probeServer := New(probes, log)
	serveProbes := func() error { return probeServer.Serve(l.Probes) }
	return append(tasks, func(ctx context.Context) error { return Serve(ctx, probeServer, "probes", serveProbes) })
}

// restrict hides all but metrics and probes with --web.metrics-only, and
// rejects foreign hosts: a web page whose own DNS name leads to podgauge (DNS
// rebinding) could read everything. Probes have nothing to read.
func (o *Options) restrict(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == "/healthz" || path == "/readyz":
		case !allowsHost(r, o.Node, o.AllowedHosts):
			const text = "host %q: not a name of this node or cluster: add the name to --web.allowed-hosts"
			http.Error(w, fmt.Sprintf(text, r.Host), http.StatusForbidden)
			return
		case o.MetricsOnly && path != o.TelemetryPath:
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// New returns an HTTP/1 server with timeouts. HTTP/2 allows 250 requests on a
// connection, and releases waiting requests late.
func New(h http.Handler, log *slog.Logger) *http.Server {
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
func (o *Options) serve(server *http.Server, l net.Listener, log *slog.Logger) error {
	if o.ConfigFile == "" {
		return server.Serve(l)
	}
	defer l.Close() //nolint:errcheck // Serve has closed l, unless the file is invalid
	return web.Serve(l, server, &web.FlagConfig{WebConfigFile: &o.ConfigFile}, log)
}

// Serve serves until ctx is done, and then completes running requests within
// shutdownTimeout. The context of each request ends with ctx.
func Serve(ctx context.Context, server *http.Server, what string, serve func() error) error {
	server.BaseContext = func(net.Listener) context.Context { return ctx }
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

// allowsHost reports whether the Host of a request is an address, the node's
// name, one of more names, or a name that no web page can have,
// because its last label is no public domain: localhost, podgauge.gpus,
// podgauge.gpus.svc.cluster.local. kubectl podgauge sends Sec-Fetch-Site,
// because the API server's proxy keeps the API server's name as Host; scripts
// of a page cannot send this header.
func allowsHost(r *http.Request, node string, more []string) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil { // without a port
		host = strings.Trim(r.Host, "[]")
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	_, err = netip.ParseAddr(host)
	domain, public := publicsuffix.PublicSuffix(host)
	private := !strings.Contains(host, ".") || !public && !strings.Contains(domain, ".")
	return err == nil || private || r.Header.Get("Sec-Fetch-Site") == "none" || strings.EqualFold(host, node) ||
		slices.ContainsFunc(more, func(name string) bool { return strings.EqualFold(name, host) })
}
