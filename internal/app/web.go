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

func (o *webOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listenAddress, "web.listen-address", ":9400", "`address` on which the metrics, the page, the JSON and the probes are served")
	f.StringVar(&o.telemetryPath, "web.telemetry-path", "/metrics", "`path` under which the metrics are served")
	f.StringVar(&o.configFile, "web.config.file", "", "`file` that asks for TLS and passwords there, as all Prometheus exporters take it")
	f.StringVar(&o.probeAddress, "web.probe-address", "", "`address` on which the probes, and nothing else, are served as well, in plain HTTP whatever --web.config.file says; empty: none")
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
	if o.probeAddress == "" {
		return nil
	}
	if err := checkAddress(o.probeAddress); err != nil {
		return fmt.Errorf("--web.probe-address %q: %w", o.probeAddress, err)
	}
	return nil
}

// fileError says in one line what is wrong with a file that a library has read.
func fileError(flag, file string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok && pathErr.Path == file {
		err = pathErr.Err // the name is said already
	}
	return fmt.Errorf("%s %q: %s", flag, file, sanitize(strings.Join(strings.Fields(err.Error()), " ")))
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
func (o *webOptions) checkPath() error {
	switch p := o.telemetryPath; {
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
	main   net.Listener
	probes net.Listener // nil: none of their own
}

func (o *webOptions) listen() (listeners, error) {
	main, err := listenTCP(o.listenAddress)
	if err != nil {
		return listeners{}, fmt.Errorf("serve metrics: %w", err)
	}
	if o.probeAddress == "" {
		return listeners{main: main}, nil
	}
	probes, err := listenTCP(o.probeAddress)
	if err != nil {
		return listeners{}, errors.Join(fmt.Errorf("serve probes: %w", err), main.Close())
	}
	return listeners{main, probes}, nil
}

// Close is of listeners on which nothing is served.
func (l listeners) Close() error {
	if l.probes == nil {
		return l.main.Close()
	}
	return errors.Join(l.main.Close(), l.probes.Close())
}

// serveTasks are the tasks that answer what comes in.
func (o *webOptions) serveTasks(metrics *exporter.Exporter, s exporter.HandlerOptions, l listeners, log *slog.Logger) []func(context.Context) error {
	mainServer := newHTTPServer(metrics.Handler(s), log)
	mainListener := newBoundedListener(mainServer, l.main)
	tasks := []func(context.Context) error{func(ctx context.Context) error {
		return serveHTTP(ctx, mainServer, "metrics", func() error { return o.serve(mainServer, mainListener, log.With("part", "web")) })
	}}
	if l.probes == nil {
		return tasks
	}
	log.Info("probes are served on an address of their own", "address", l.probes.Addr().String())
	probeServer := newHTTPServer(s.Probes(), log)
	probeListener := newBoundedListener(probeServer, l.probes)
	return append(tasks, func(ctx context.Context) error {
		return serveHTTP(ctx, probeServer, "probes", func() error { return probeServer.Serve(probeListener) })
	})
}

// newHTTPServer answers clients that take their time, but not for ever, and one request of each at
// a time: HTTP/2 has 250 on a connection, and lets go of those that wait only when they have waited.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		Protocols:         http1,
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
func (o *webOptions) serve(server *http.Server, l net.Listener, log *slog.Logger) error {
	if o.configFile == "" {
		return server.Serve(l)
	}
	defer l.Close() //nolint:errcheck // who serves closes it, unless the file is wrong by now
	limiter := newPasswordLimiter(log)
	server.Handler = limiter.recordAccepted(server.Handler)
	// By the time of this call the server's handler is the toolkit's, which has no other way to put one before it.
	server.BaseContext = func(net.Listener) context.Context {
		server.Handler = limiter.limitGuesses(server.Handler)
		return context.Background()
	}
	return web.Serve(l, server, &web.FlagConfig{WebConfigFile: &o.configFile}, log)
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
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close() //nolint:errcheck // the listener is closed already; the rest is cut off
	}
	<-served //nolint:errcheck // that the server was closed is no error
	return nil
}
