package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// scrapeTimeoutMargin is kept back of the time that Prometheus grants a scrape, for the
// answer to get there.
const scrapeTimeoutMargin = 50 * time.Millisecond

// HandlerOptions says what is served beside the readings.
type HandlerOptions struct {
	TelemetryPath string // "/metrics"
	Pprof         bool   // serve /debug/pprof/
	// Registry holds this process's own metrics.
	Registry *prometheus.Registry
	// Alive and Ready are nil, or say what is wrong, one func for each part of
	// the process. Alive must not depend on the driver or the kubelet: a restart
	// mends neither, and ends the device plugin.
	Alive, Ready map[string]func() error
	Log          *slog.Logger
	// Version and Simulated are said on the page.
	Version   string
	Simulated bool
}

// Handler serves the metrics, the probes, what else there is to know, and a page for people.
func (e *Exporter) Handler(o HandlerOptions) http.Handler {
	mux := http.NewServeMux()
	if o.TelemetryPath == "/" {
		mux.Handle("GET /{$}", e.metricsHandler(o)) // what is below has patterns of its own
	} else {
		mux.Handle("GET "+o.TelemetryPath, e.metricsHandler(o))
	}
	o.probes(mux)
	apiLimiter, pageLimiter := make(requestLimiter, maxConcurrentRequests), make(requestLimiter, maxConcurrentRequests)
	mux.Handle(api.Root, apiLimiter.limit(api.Handler(e.options.Hostname, e.sources.Node), api.WriteError))
	if o.TelemetryPath != "/" {
		page := status.New(pageState{e.sources.Node, e}, status.PageOptions{Node: e.options.Hostname, Version: o.Version, Simulated: o.Simulated, Links: o.linkPaths()})
		mux.Handle("GET /{$}", pageLimiter.limit(e.encoder.compress(page), writeError))
		mux.Handle("GET "+status.AssetsPath, status.Assets())
	}
	if o.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != o.TelemetryPath {
			setSecurityHeaders(w.Header())
		}
		mux.ServeHTTP(w, r)
	})
}

// Probes answers the probes, and nothing else: for who cannot show a certificate or a password.
func (o HandlerOptions) Probes() http.Handler {
	mux := http.NewServeMux()
	o.probes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		mux.ServeHTTP(w, r)
	})
}

func (o HandlerOptions) probes(mux *http.ServeMux) {
	mux.Handle("GET /healthz", probeHandler(o.Alive))
	mux.Handle("GET /readyz", probeHandler(o.Ready))
}

// metricsHandler answers scrapes.
func (e *Exporter) metricsHandler(o HandlerOptions) http.Handler {
	self := filteredGatherer{o.Registry, e.options.Filter}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := scrapeContext(r)
		defer cancel()
		format := expfmt.NegotiateAccept(r.Header, formats...)
		repr := representation{format.FormatType(), acceptsGzip(r.Header.Values("Accept-Encoding"))}
		// A scrape that cannot wait for the flight gets the process's own
		// metrics: never values of an earlier flight.
		c := e.waitForCollection(ctx)
		b, err := e.encodeScrape(c, repr, self)
		if err != nil {
			o.Log.Warn("encode a scrape", "err", err)
		}
		w.Header().Set("Content-Type", string(format))
		w.Header().Set("Vary", "Accept, Accept-Encoding")
		w.Header().Set("Content-Length", strconv.Itoa(len(b.data)))
		if repr.gzip {
			w.Header().Set("Content-Encoding", "gzip")
		}
		e.sender.send(w, b)
	})
}

// scrapeContext returns a context for the scrape's wait, which ends within the client's timeout and the collection's fixed budget. It
// outlives the request's context: net/http cancels that if the client closes its sending half, as nc -N does.
func scrapeContext(r *http.Request) (context.Context, context.CancelFunc) {
	timeout, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(timeout > 0 && timeout < time.Hour.Seconds()) {
		return context.WithoutCancel(r.Context()), func() {}
	}
	wait := time.Duration(timeout * float64(time.Second))
	return context.WithTimeout(context.WithoutCancel(r.Context()), wait-min(scrapeTimeoutMargin, wait/2))
}

// probeHandler answers 200, or 503 with what is wrong.
func probeHandler(checks map[string]func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var errs []error
		for name, check := range checks {
			if err := check(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := errors.Join(errs...); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// linkPaths are where there is more to read.
func (o HandlerOptions) linkPaths() []string {
	paths := []string{o.TelemetryPath, api.DevicesPath, api.HoldersPath, api.IncidentsPath, "/healthz", "/readyz"}
	if o.Pprof {
		paths = append(paths, "/debug/pprof/")
	}
	for i := range paths { // below wherever the page is: a proxy may have put it below a path of its own
		paths[i] = strings.TrimPrefix(paths[i], "/")
	}
	return paths
}
