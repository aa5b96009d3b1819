package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// watchedNode is a node whose state a test changes.
type watchedNode struct {
	t     *testing.T
	state pubsub.Value[api.Node]
}

func newWatchedNode(t *testing.T) *watchedNode {
	w := &watchedNode{t: t}
	w.state.Set(api.Node(*newAPIFixture(time.Now())))
	return w
}

// change publishes a changed state.
func (w *watchedNode) change(change func(n *api.Node)) {
	n, _ := w.state.Get()
	n.Statuses = slices.Clone(n.Statuses)
	change(&n)
	w.state.Set(n)
}

// setFlaps changes a device.
func (w *watchedNode) setFlaps(flaps uint64) {
	w.change(func(n *api.Node) { n.Statuses[0].Flaps = flaps })
}

// watch starts a stream that ends with ctx.
func (w *watchedNode) watch(ctx context.Context, to http.ResponseWriter, url string) {
	h := api.Handler(func() (api.Node, []<-chan struct{}) {
		n, changed := w.state.Get()
		return n, []<-chan struct{}{changed}
	})
	h.ServeHTTP(to, httptest.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody))
}

// stream is the response of a stream: a channel with a line for each Write.
type stream struct {
	t      *testing.T
	header http.Header
	lines  chan string
}

func (s stream) Header() http.Header { return s.header }

func (s stream) WriteHeader(status int) { s.t.Errorf("got status %d", status) }

func (s stream) Flush() {}

func (s stream) Write(b []byte) (int, error) {
	s.lines <- string(b)
	return len(b), nil
}

// start starts a stream that ends with the test. The client has room for unread lines.
func (w *watchedNode) start(url string, room int) stream {
	s := stream{w.t, http.Header{}, make(chan string, room)}
	go w.watch(w.t.Context(), s, url)
	return s
}

// want waits until all goroutines wait, checks the number of unread lines, reads them, and returns the last.
func (s stream) want(number int) (last string) {
	s.t.Helper()
	synctest.Wait()
	if len(s.lines) != number {
		s.t.Fatalf("got %d lines, want %d", len(s.lines), number)
	}
	for range number {
		if last = <-s.lines; !json.Valid([]byte(last)) || strings.Index(last, "\n") != len(last)-1 {
			s.t.Fatalf("got %q", last)
		}
	}
	return last
}

// TestWatch checks that a stream has the state at once, a line after each change, and a line after 15 s without one.
func TestWatch(t *testing.T) {
	for _, path := range []string{api.NodePath + "?watch", api.DevicesPath + "?device=0&watch=true"} {
		bubble.Test(t, func(t *testing.T) {
			w := newWatchedNode(t)
			s := w.start(path, 10)
			first := s.want(1)
			document := httptest.NewRecorder()
			w.watch(t.Context(), document, strings.TrimRight(strings.ReplaceAll(path, "watch=true", ""), "?&watch"))
			if got := s.header.Get("Content-Type"); got != "application/x-ndjson" || document.Body.String() != first {
				t.Errorf("%s: got %s %s, want %s", path, got, first, document.Body)
			}
			time.Sleep(10 * time.Second)
			w.setFlaps(9)
			expect.Contains(t, s.want(1), `"flaps":9`, "after a change")
			time.Sleep(15*time.Second - time.Nanosecond)
			s.want(0)
			time.Sleep(time.Nanosecond)
			at, _ := time.Now().MarshalText()
			expect.Contains(t, s.want(1), fmt.Sprintf(`"at":"%s"`, at), "after 15 s")
		})
	}
}

// TestWatchOmitsEqualStates checks that no path has a line for a state that differs only in times of the response.
func TestWatchOmitsEqualStates(t *testing.T) {
	for _, path := range []string{api.NodePath, api.DevicesPath, api.AllocationsPath, api.IncidentsPath} {
		bubble.Test(t, func(t *testing.T) {
			w := newWatchedNode(t)
			s := w.start(path+"?watch", 10)
			s.want(1)
			time.Sleep(5 * time.Second)
			w.change(func(n *api.Node) { n.Allocations.At = time.Now() })
			s.want(0)
			time.Sleep(5 * time.Second)
			w.change(func(n *api.Node) {
				n.Incidents.Incidents = slices.Clone(n.Incidents.Incidents)
				n.Incidents.Incidents[0].Count++
				n.Allocations.Complete = false
			})
			s.want(1)
		})
	}
}

// TestWatchManyIncidents checks the limits of the incidents in a line.
func TestWatchManyIncidents(t *testing.T) {
	for url, want := range map[string]int{
		api.NodePath + "?watch": 200, api.IncidentsPath + "?limit=1000&watch": 100, api.IncidentsPath + "?limit=9&watch": 9,
	} {
		bubble.Test(t, func(t *testing.T) {
			w := newWatchedNode(t)
			w.change(func(n *api.Node) {
				n.Incidents.Incidents = nil
				for i := range uint64(250) {
					n.Incidents.Incidents = append(n.Incidents.Incidents, incident.Incident{ID: 250 - i, Last: time.Now()})
				}
			})
			var got struct {
				Incidents []incident.Incident
				Total     int
				NodeTotal int `json:"incidents_total"`
			}
			require.NoError(t, json.Unmarshal([]byte(w.start(url, 1).want(1)), &got))
			if len(got.Incidents) != want || got.Incidents[0].ID != 250 || got.Total+got.NodeTotal != 250 {
				t.Errorf("%s: got %d incidents of %d, want %d", url, len(got.Incidents), got.Total+got.NodeTotal, want)
			}
		})
	}
}

// TestWatchSkipsStates checks that a stream has at most 5 lines a second, and ends with the newest state.
func TestWatchSkipsStates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWatchedNode(t)
		s := w.start(api.NodePath+"?watch", 10)
		for i := range uint64(1000) {
			w.setFlaps(i)
			time.Sleep(time.Millisecond)
		}
		expect.Contains(t, s.want(6), `"flaps":999`)
	})
}

// TestWatchOfSlowReader checks that a client that reads slowly gets the newest state after the line that it reads.
func TestWatchOfSlowReader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWatchedNode(t)
		s := w.start(api.NodePath+"?watch", 0)
		for i := range uint64(50) {
			time.Sleep(time.Second)
			w.setFlaps(i)
		}
		first, second := <-s.lines, <-s.lines
		if strings.Contains(first, `"flaps":49`) || !strings.Contains(second, `"flaps":49`) {
			t.Errorf("got %s and then %s", first, second)
		}
	})
}

// TestWatchedIncidents checks that the start of the incidents moves with time.
func TestWatchedIncidents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWatchedNode(t)
		w.change(func(n *api.Node) { n.Incidents.Incidents = []incident.Incident{{ID: 77, Last: time.Now()}} })
		s := w.start(api.NodePath+"?watch", 100)
		expect.Contains(t, s.want(1), `"id":77`)
		time.Sleep(16 * time.Minute)
		expect.Contains(t, s.want(16*4), `"incidents":[]`, "after 16 minutes")
	})
}

// TestHeadOfWatch checks that a HEAD request ends.
func TestHeadOfWatch(t *testing.T) {
	w := httptest.NewRecorder()
	source := func() (api.Node, []<-chan struct{}) { return api.Node{}, nil }
	api.Handler(source).ServeHTTP(w, httptest.NewRequest(http.MethodHead, api.NodePath+"?watch", http.NoBody))
	if w.Code != http.StatusOK || w.Body.Len() != 0 || w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("got status %d, %v, %s", w.Code, w.Header(), w.Body)
	}
}
