package app_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/web/server"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// watchServer is the HTTP server of a scripted node, on connections with little room for unread bytes.
type watchServer struct {
	t        *testing.T
	node     *node.State
	listener *bufconn.Listener
	served   chan error
	ended    chan time.Time // of a request
}

// serveWatches starts a server that ends with ctx.
func serveWatches(ctx context.Context, t *testing.T) *watchServer {
	s := &watchServer{t, nil, bufconn.Listen(1 << 10), make(chan error, 1), make(chan time.Time, 1)}
	sources := newScriptedNode().sources()
	s.node = sources.State
	h := exporter.New(sources, exporter.Options{}).Handler(exporter.HandlerOptions{TelemetryPath: "/metrics", Registry: prometheus.NewRegistry()})
	web := server.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		s.ended <- time.Now()
	}), slog.New(slog.DiscardHandler))
	go func() {
		s.served <- server.Serve(ctx, web, "metrics", func() error { return web.Serve(s.listener) })
	}()
	return s
}

// watch sends the request for a stream.
func (s *watchServer) watch() net.Conn {
	conn, err := s.listener.Dial()
	if err == nil {
		_, err = io.WriteString(conn, "GET /api/v1/node?watch HTTP/1.1\r\nHost: node-a\r\n\r\n")
	}
	require.NoError(s.t, err)
	return conn
}

// TestShutdownEndsWatches checks that a stream outlives the timeouts of the server, and that it ends whole and at once
// when the server ends.
func TestShutdownEndsWatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, shutdown := context.WithCancel(t.Context())
		s := serveWatches(ctx, t)
		conn := s.watch()
		defer conn.Close()
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		lines := bufio.NewReader(response.Body)
		for range 40 { // 15 s apart
			_, err := lines.ReadString('\n')
			require.NoError(t, err)
		}
		at := time.Now()
		shutdown()
		if _, err := lines.ReadByte(); err != io.EOF { // io.ErrUnexpectedEOF after a Close of the server
			t.Errorf("got %v, want the end of the stream", err)
		}
		if err := <-s.served; err != nil || time.Since(at) >= time.Second {
			t.Errorf("the server ended after %s: %v", time.Since(at), err)
		}
	})
}

// TestStoppedWatch checks that the stream of a client that does not read ends 20 s after the start of the unread line.
func TestStoppedWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, shutdown := context.WithCancel(t.Context())
		s := serveWatches(ctx, t)
		conn := s.watch()
		defer conn.Close()
		started := time.Now()
		for range 30 {
			time.Sleep(time.Second)
			s.node.Driver.Set(device.Driver{State: device.DriverFailing, Err: io.ErrShortWrite})
		}
		expect.Equal(t, (<-s.ended).Sub(started), 20*time.Second, "the stream ended after")
		if unread, err := io.ReadAll(conn); err != nil || len(unread) > 2<<10 { // of the connection
			t.Errorf("got %d bytes: %v", len(unread), err)
		}
		shutdown()
		require.NoError(t, <-s.served)
	})
}

// Patterns of elements that differ between runs: times, and the lines of the last half hour.
var (
	timeElements = regexp.MustCompile(`<time [^>]*>[^<]*</time>`)
	sparklines   = regexp.MustCompile(`(?s)<svg class="past" .*?</svg>`)
)

// getPage returns the status page without values that differ between runs.
func (w *testApp) getPage() string {
	w.t.Helper()
	code, text := w.getPath("/")
	if code != http.StatusOK {
		w.t.Fatalf("/: got %d %s", code, text)
	}
	text = timeElements.ReplaceAllString(text, "<time></time>")
	text = sparklines.ReplaceAllString(text, `<svg class="past"/>`)
	if w.kubelet != nil {
		text = strings.ReplaceAll(text, w.kubelet.Dir(), "/kubelet")
	}
	return text
}

// checkPage waits until the page equals the golden file of a state.
func (w *testApp) checkPage(state string) {
	w.t.Helper()
	file := filepath.Join("testdata", state+".html")
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	if *update {
		page := w.getPage()
		for lastChange, end := time.Now(), time.Now().Add(waitTimeout); time.Since(lastChange) < 3*time.Second && time.Now().Before(end); <-poll.C {
			if next := w.getPage(); next != page {
				page, lastChange = next, time.Now()
			}
		}
		require.NoError(w.t, os.WriteFile(file, []byte(page), 0o644))
	}
	got, want := w.getPage(), testfile.Read(w.t, file)
	for end := time.Now().Add(waitTimeout); got != want && time.Now().Before(end); <-poll.C {
		got = w.getPage()
	}
	if got != want {
		w.t.Errorf("the page of %s differs from %s; if intended, run make golden:\n%s", state, file, diffLines(want, got))
	}
}
