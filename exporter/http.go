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

// answerMargin is kept back of the time that Prometheus grants a scrape, for the
// answer to get there.
const answerMargin = 50 * time.Millisecond

// Server says what is served beside the readings.
type Server struct {
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
func (e *Exporter) Handler(s Server) http.Handler {
	mux := http.NewServeMux()
	if s.TelemetryPath == "/" {
		mux.Handle("GET /{$}", e.metrics(s)) // what is below has patterns of its own
	} else {
		mux.Handle("GET "+s.TelemetryPath, e.metrics(s))
	}
	s.probes(mux)
	programs, viewers := make(inFlight, mostAnswers), make(inFlight, mostAnswers)
	known := api.Sources{Node: e.options.Hostname, Look: e.Look, Held: e.Held, Driver: e.Driver, Incidents: e.Incidents}
	mux.Handle(api.Root, programs.bound(api.Handler(known), api.Refuse))
	if s.TelemetryPath != "/" {
		page := status.New(status.Sources{
			Sources: known, Read: e.glance, Stalled: e.Stalled, Offers: e.Offers, Pods: e.PodsAPI,
			Version: s.Version, Simulated: s.Simulated, Links: s.paths(),
		})
		mux.Handle("GET /{$}", viewers.bound(e.encoder.compressed(page), refuse))
		mux.Handle("GET "+status.AssetsPath, status.Assets())
	}
	if s.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != s.TelemetryPath {
			guard(w.Header())
		}
		mux.ServeHTTP(w, r)
	})
}

// Probes answers the probes, and nothing else: for who cannot show a certificate or a password.
func (s Server) Probes() http.Handler {
	mux := http.NewServeMux()
	s.probes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guard(w.Header())
		mux.ServeHTTP(w, r)
	})
}

func (s Server) probes(mux *http.ServeMux) {
	mux.Handle("GET /healthz", probe(s.Alive))
	mux.Handle("GET /readyz", probe(s.Ready))
}

// metrics answers scrapes.
func (e *Exporter) metrics(s Server) http.Handler {
	own := chosen{s.Registry, e.options.Choice}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := patience(r)
		defer cancel()
		format := expfmt.NegotiateAccept(r.Header, formats...)
		as := representation{format.FormatType(), takesGzip(r.Header.Values("Accept-Encoding"))}
		// A scrape that cannot wait for the flight gets the process's own
		// metrics: never values of an earlier flight.
		f := e.snapshot(ctx)
		b, err := e.scrape(f, as, own)
		if err != nil {
			s.Log.Warn("encode a scrape", "err", err)
		}
		w.Header().Set("Content-Type", string(format))
		w.Header().Set("Vary", "Accept, Accept-Encoding")
		w.Header().Set("Content-Length", strconv.Itoa(len(b.data)))
		if as.gzip {
			w.Header().Set("Content-Encoding", "gzip")
		}
		e.sender.send(w, b)
	})
}

// patience returns a context for the scrape's wait, which ends within the client's timeout and the collection's fixed budget. It
// outlives the request's context: net/http cancels that if the client closes its sending half, as nc -N does.
func patience(r *http.Request) (context.Context, context.CancelFunc) {
	granted, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(granted > 0 && granted < time.Hour.Seconds()) {
		return context.WithoutCancel(r.Context()), func() {}
	}
	wait := time.Duration(granted * float64(time.Second))
	return context.WithTimeout(context.WithoutCancel(r.Context()), wait-min(answerMargin, wait/2))
}

// probe answers 200, or 503 with what is wrong.
func probe(parts map[string]func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var wrong []error
		for name, ask := range parts {
			if err := ask(); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := errors.Join(wrong...); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// paths are where there is more to read.
func (s Server) paths() []string {
	paths := []string{s.TelemetryPath, api.DevicesPath, api.HoldersPath, api.IncidentsPath, "/healthz", "/readyz"}
	if s.Pprof {
		paths = append(paths, "/debug/pprof/")
	}
	for i := range paths { // below wherever the page is: a proxy may have put it below a path of its own
		paths[i] = strings.TrimPrefix(paths[i], "/")
	}
	return paths
}
