package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/pflag"
)

// webOptions are the part of the command line that says where answers are given, and to whom.
type webOptions struct {
	listenAddress string
	telemetryPath string
	configFile    string
	probeAddress  string
	pprof         bool
}

func (m *webOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&m.listenAddress, "web.listen-address", ":9400", "`address` on which the metrics, the page, the JSON and the probes are served")
	f.StringVar(&m.telemetryPath, "web.telemetry-path", "/metrics", "`path` under which the metrics are served")
	f.StringVar(&m.configFile, "web.config.file", "", "`file` that asks for TLS and passwords there, as all Prometheus exporters take it")
	f.StringVar(&m.probeAddress, "web.probe-address", "", "`address` on which the probes, and nothing else, are served as well, in plain HTTP whatever --web.config.file says; empty: none")
	f.BoolVar(&m.pprof, "web.enable-pprof", false, "serve Go's profiles under /debug/pprof/")
}

func (m *webOptions) check() error {
	if err := checkAddress(m.listenAddress); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", m.listenAddress, err)
	}
	if err := m.checkPath(); err != nil {
		return fmt.Errorf("--web.telemetry-path %q: %w", m.telemetryPath, err)
	}
	if err := web.Validate(m.configFile); err != nil {
		return wrongFile("--web.config.file", m.configFile, err)
	}
	if m.probeAddress == "" {
		return nil
	}
	if err := checkAddress(m.probeAddress); err != nil {
		return fmt.Errorf("--web.probe-address %q: %w", m.probeAddress, err)
	}
	return nil
}

// wrongFile says in one line what is wrong with a file that a library has read.
func wrongFile(flag, file string, err error) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok && of.Path == file {
		err = of.Err // the name is said already
	}
	return fmt.Errorf("%s %q: %s", flag, file, printable(strings.Join(strings.Fields(err.Error()), " ")))
}

// checkAddress wants a port that there can be. Port 0 is any that is free.
func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("want host:port, or :port")
	}
	if port == "" {
		return errors.New("want a port")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q is no port", port)
	}
	return nil
}

// checkPath wants a path that the HTTP server takes, and that nothing else is under.
func (m *webOptions) checkPath() error {
	switch p := m.telemetryPath; {
	case !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "{} ?#%"):
		return errors.New("want a path that begins with /")
	case path.Clean(p) != p:
		return fmt.Errorf("want %s", path.Clean(p))
	case p == "/healthz" || p == "/readyz":
		return errors.New("that is a probe's")
	case strings.HasPrefix(p+"/", "/api/"):
		return errors.New("that is the JSON's")
	case p == "/debug/pprof" || strings.HasPrefix(p, "/debug/pprof/"):
		return errors.New("that is the profiles'")
	}
	return nil
}

// listeners are what the process listens on.
type listeners struct {
	all    net.Listener
	probes net.Listener // nil: none of their own
}

func (m *webOptions) listen() (listeners, error) {
	all, err := listenTCP(m.listenAddress)
	if err != nil {
		return listeners{}, fmt.Errorf("serve metrics: %w", err)
	}
	if m.probeAddress == "" {
		return listeners{all: all}, nil
	}
	probes, err := listenTCP(m.probeAddress)
	if err != nil {
		return listeners{}, errors.Join(fmt.Errorf("serve probes: %w", err), all.Close())
	}
	return listeners{all, probes}, nil
}

// Close is of listeners on which nothing is served.
func (l listeners) Close() error {
	if l.probes == nil {
		return l.all.Close()
	}
	return errors.Join(l.all.Close(), l.probes.Close())
}

// serving are the tasks that answer what comes in.
func (m *webOptions) serving(metrics *exporter.Exporter, s exporter.Server, l listeners, log *slog.Logger) []func(context.Context) error {
	all := newServer(metrics.Handler(s), log)
	asking := crowded(all, l.all)
	tasks := []func(context.Context) error{func(ctx context.Context) error {
		return serveHTTP(ctx, all, "metrics", func() error { return m.serve(all, asking, log.With("part", "web")) })
	}}
	if l.probes == nil {
		return tasks
	}
	log.Info("probes are served on an address of their own", "address", l.probes.Addr().String())
	probes := newServer(s.Probes(), log)
	probing := crowded(probes, l.probes)
	return append(tasks, func(ctx context.Context) error {
		return serveHTTP(ctx, probes, "probes", func() error { return probes.Serve(probing) })
	})
}

// newServer answers clients that take their time, but not for ever, and one request of each at
// a time: HTTP/2 has 250 on a connection, and lets go of those that wait only when they have waited.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	one := new(http.Protocols)
	one.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		Protocols:         one,
		ReadHeaderTimeout: 10 * time.Second,
		// No shorter than an answer may take: when it ends, so does the context of the request.
		ReadTimeout:    time.Minute,
		WriteTimeout:   time.Minute,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// serve answers behind TLS and passwords, where there is a file that asks for them. It is
// read again for each request and each handshake: one that is wrong by then costs that
// request, or that connection, and a line in the log.
func (m *webOptions) serve(server *http.Server, l net.Listener, log *slog.Logger) error {
	if m.configFile == "" {
		return server.Serve(l)
	}
	defer l.Close() //nolint:errcheck // who serves closes it, unless the file is wrong by now
	bound := newGuesses(log)
	server.Handler = bound.behind(server.Handler)
	// By the time of this call the server's handler is the toolkit's, which has no other way to put one before it.
	server.BaseContext = func(net.Listener) context.Context {
		server.Handler = bound.before(server.Handler)
		return context.Background()
	}
	return web.Serve(l, server, &web.FlagConfig{WebConfigFile: &m.configFile}, log)
}

// serveHTTP serves until ctx is done, and lets the answers under way be given.
func serveHTTP(ctx context.Context, server *http.Server, what string, serve func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }() // ends with Shutdown or Close, and is waited for
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", what, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBy)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close() //nolint:errcheck // the listener is closed already; the rest is cut off
	}
	<-served //nolint:errcheck // that the server was closed is no error
	return nil
}
