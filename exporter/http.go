package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

const (
	// scrapeTimeoutMargin is the part of Prometheus' scrape timeout reserved for the transfer.
	scrapeTimeoutMargin = 50 * time.Millisecond
	// scrapeWriteTimeout bounds the collections that slow readers keep in memory.
	scrapeWriteTimeout = 10 * time.Second
	// maxConcurrentScrapes is the limit of connections: 200 slow readers must
	// not reject a scrape. A compressor has 800 kB, but only a response above
	// the socket's buffer keeps one for a slow reader.
	maxConcurrentScrapes = 256
	// maxConcurrentRequests bounds the JSON responses, and separately the
	// pages, in progress. A viewer of the page may wait for a collection while
	// the driver hangs, and must not block programs. A response stays in memory
	// until read, which may take a minute; most have less than a megabyte, and
	// 1000 incidents with all affected containers and labels about 16.
	maxConcurrentRequests = 8
	// maxWatches bounds the streams of the JSON API; each may keep a line in
	// memory. One client per cluster watches a node.
	maxWatches = 16
)

// HandlerOptions configure the paths besides the readings.
type HandlerOptions struct {
	TelemetryPath string               // "/metrics"
	Pprof         bool                 // serve /debug/pprof/
	Registry      *prometheus.Registry // podgauge's own metrics
	// Alive and Ready return the errors of the parts of the process. Alive must
	// not depend on the driver or the kubelet: a restart repairs neither, and ends
	// the device plugin.
	Alive, Ready func() map[string]error
	Notes        func() []string // lines of a ready process; nil: none
	Log          *slog.Logger
	Version      string // shown on the page, as Simulated is
	Simulated    bool
}

// Handler serves metrics, probes, the JSON API and the status page.
func (e *Exporter) Handler(o HandlerOptions) http.Handler {
	mux := http.NewServeMux()
	if o.TelemetryPath == "/" {
		mux.Handle("GET /{$}", e.metricsHandler(o)) // the paths below have patterns of their own
	} else {
		mux.Handle("GET "+o.TelemetryPath, e.metricsHandler(o))
		page := status.New(e.pageNode, status.PageOptions{
			Node: e.options.Hostname, Version: o.Version, Simulated: o.Simulated, Links: o.linkPaths(),
		})
		mux.Handle("GET /{$}", make(requestLimiter, maxConcurrentRequests).limit(page, writeError))
		mux.Handle("GET "+status.AssetsPath, status.Assets())
	}
	o.handleProbes(mux)
	mux.Handle(api.Root, e.APIHandler())
	if o.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return withSecurityHeaders(mux, o.TelemetryPath)
}

// APIHandler serves the JSON API. Streams have a limit of their own, because
// they do not end.
func (e *Exporter) APIHandler() http.Handler {
	all := api.Handler(e.watchedNode)
	responses := make(requestLimiter, maxConcurrentRequests).limit(all, api.WriteError)
	streams := make(requestLimiter, maxWatches).limit(all, api.WriteError)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if api.IsWatch(r) {
			streams.ServeHTTP(w, r)
			return
		}
		responses.ServeHTTP(w, r)
	})
}

// Probes serves the probes only, for clients without a certificate or password.
func (o HandlerOptions) Probes() http.Handler {
	mux := http.NewServeMux()
	o.handleProbes(mux)
	return withSecurityHeaders(mux, "")
}

func (o HandlerOptions) handleProbes(mux *http.ServeMux) {
	mux.Handle("GET /healthz", probeHandler(o.Alive, nil))
	mux.Handle("GET /readyz", probeHandler(o.Ready, o.Notes))
}

// probeHandler answers 200 with notes, or 503 with a line for each error.
func probeHandler(check func() map[string]error, notes func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var lines []string
		failures := check()
		for _, name := range slices.Sorted(maps.Keys(failures)) {
			lines = append(lines, name+": "+strings.ReplaceAll(failures[name].Error(), "\n", "; "))
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		switch {
		case lines != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		case notes != nil:
			lines = append([]string{"ok"}, notes()...)
		default:
			lines = []string{"ok"}
		}
		fmt.Fprintln(w, text.PrintableLines(strings.Join(lines, "\n")))
	}
}

// linkPaths returns the paths linked on the page, relative, since a proxy may serve the page below a path of its own.
func (o HandlerOptions) linkPaths() []string {
	paths := []string{o.TelemetryPath, api.DevicesPath, api.AllocationsPath, api.IncidentsPath, "/healthz", "/readyz"}
	if o.Pprof {
		paths = append(paths, "/debug/pprof/")
	}
	for i := range paths {
		paths[i] = strings.TrimPrefix(paths[i], "/")
	}
	return paths
}

// metricsHandler serves scrapes. A scrape whose timeout is too short for the
// collection gets podgauge's own metrics, never values of an earlier
// collection. promhttp's timeout would keep a copy of each response for slow
// readers, and its log would have a line per family for a client that
// disconnects.
func (e *Exporter) metricsHandler(o HandlerOptions) http.Handler {
	filter := e.options.Filter
	own := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := o.Registry.Gather()
		if err != nil {
			o.Log.Warn("scrape lacks invalid metrics", "err", err)
		}
		return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !filter.Matches(f.GetName()) }), err
	})
	all := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := own()
		return slices.Concat(e.finished.Load().families, families), err
	})
	options := promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxConcurrentScrapes,
		AcceptedFormats: []expfmt.Format{expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1, expfmt.FmtText},
	}
	complete, incomplete := promhttp.HandlerFor(all, options), promhttp.HandlerFor(own, options)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := scrapeContext(r)
		defer cancel()
		handler := complete
		if !e.waitForCollection(ctx, e.isReusable) {
			handler = incomplete
		}
		//nolint:errcheck // only connections of tests lack deadlines
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeWriteTimeout))
		handler.ServeHTTP(w, r)
	})
}

// scrapeContext returns a context for the scrape's wait, which ends within the
// client's timeout and the collection's fixed budget. It outlives the request's
// context: net/http cancels that if the client closes its sending half, as nc
// -N does.
func scrapeContext(r *http.Request) (context.Context, context.CancelFunc) {
	timeout, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(timeout > 0 && timeout < time.Hour.Seconds()) {
		timeout = time.Hour.Seconds()
	}
	wait := time.Duration(timeout * float64(time.Second))
	return context.WithTimeout(context.WithoutCancel(r.Context()), wait-min(scrapeTimeoutMargin, wait/2))
}

// requestLimiter bounds concurrent requests.
type requestLimiter chan struct{}

// limit rejects requests above the limit: waiting requests would take memory as well.
func (l requestLimiter) limit(
	next http.Handler, reject func(w http.ResponseWriter, status int, err error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case l <- struct{}{}:
			defer func() { <-l }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			reject(w, http.StatusServiceUnavailable, errBusy)
		}
	})
}

var errBusy = errors.New("too many requests at a time")

func writeError(w http.ResponseWriter, status int, err error) { http.Error(w, err.Error(), status) }

// withSecurityHeaders prevents browsers from guessing a type, caching, sending
// referrers and running content, except for metrics. The page has a policy of
// its own.
func withSecurityHeaders(next http.Handler, metricsPath string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != metricsPath {
			h := w.Header()
			h.Set("Content-Security-Policy",
				"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}
