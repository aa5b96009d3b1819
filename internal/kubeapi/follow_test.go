package kubeapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/test/helpers/apiserver"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// testTimeout is the maximum wait for an event that takes milliseconds.
const testTimeout = 20 * time.Second

// recorder runs a Follower and records events: "+a", "~a" and "-a" for pods, "[", "]" and "r" for lists and resumptions.
// A server that stops may accept a watch before it closes its socket, so repeated resumptions count once.
type recorder struct {
	t       *testing.T
	events  chan string
	errs    chan error
	resumed bool // at the last event
}

func follow(t *testing.T, f *kubeapi.Follower) *recorder {
	t.Helper()
	r := &recorder{t: t, events: make(chan string, 1000), errs: make(chan error, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := f.Follow(ctx, r.handle); err != nil {
				r.errs <- err
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *recorder) handle(e kubeapi.WatchEvent) error {
	sign := map[kubeapi.EventType]string{
		kubeapi.ListStarted: "[", kubeapi.ListEnded: "]", kubeapi.Resumed: "r", kubeapi.Added: "+", kubeapi.Modified: "~", kubeapi.Deleted: "-",
	}[e.Type]
	var object struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal(e.Object, &object); e.Object != nil && err != nil {
		r.t.Error(err)
	}
	if e.Type != kubeapi.Resumed || !r.resumed {
		r.events <- sign + object.Metadata.Name
	}
	r.resumed = e.Type == kubeapi.Resumed
	return nil
}

// want waits for exactly these events.
func (r *recorder) want(all ...string) {
	r.t.Helper()
	for i, want := range all {
		select {
		case got := <-r.events:
			if got != want {
				r.t.Fatalf("event %d: got %q, want %q", i, got, want)
			}
		case <-time.After(testTimeout):
			r.t.Fatalf("event %d: want %q, got none; error %v", i, want, r.err())
		}
	}
}

// err returns the first error so far, if any.
func (r *recorder) err() error {
	select {
	case err := <-r.errs:
		return err
	default:
		return nil
	}
}

// waitErr waits for an error with a text.
func (r *recorder) waitErr(text string) {
	r.t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case err := <-r.errs:
			if strings.Contains(err.Error(), text) {
				return
			}
		case <-timeout:
			r.t.Fatalf("no error with %q", text)
		}
	}
}

func pod(name string) string { return fmt.Sprintf(`{"metadata":{"name":%q}}`, name) }

func podFollower(s *apiserver.Server) *kubeapi.Follower {
	return &kubeapi.Follower{Client: s.Client(), Path: "/api/v1/pods", FieldSelector: "spec.nodeName=node-a"}
}

func TestFollow(t *testing.T) {
	s := apiserver.Start(t)
	s.Set("pods", "a", pod("a"))
	r := follow(t, podFollower(s))
	r.want("[", "+a", "]")
	s.Set("pods", "b", pod("b"))
	s.Set("pods", "a", pod("a"))
	s.Delete("pods", "a")
	r.want("+b", "~a", "-a")
	if err := r.err(); err != nil {
		t.Error(err)
	}
}

// TestOutage checks that no event is lost, and no list is needed, if the API server still has the events.
func TestOutage(t *testing.T) {
	s := apiserver.Start(t)
	s.Set("pods", "a", pod("a"))
	r := follow(t, podFollower(s))
	r.want("[", "+a", "]")
	s.Set("pods", "c", pod("c"))
	r.want("+c") // the watch has begun
	s.Stop()
	r.waitErr("refused")
	s.Set("pods", "b", pod("b"))
	s.Delete("pods", "b")
	s.Resume()
	r.want("r", "+b", "-b")
}

// TestExpired checks that expired events cause a new list at once.
func TestExpired(t *testing.T) {
	s := apiserver.Start(t)
	s.Set("pods", "a", pod("a"))
	r := follow(t, podFollower(s))
	r.want("[", "+a", "]")
	s.Set("pods", "a", pod("a"))
	r.want("~a") // the watch has begun
	s.Stop()
	s.Delete("pods", "a")
	s.Set("pods", "b", pod("b"))
	s.Compact()
	s.Resume()
	r.want("r", "[", "+b", "]")
}

// TestHandlerError checks that an error of the handler causes a new list: the object was not applied.
func TestHandlerError(t *testing.T) {
	s := apiserver.Start(t)
	s.Set("pods", "a", pod("a"))
	f := podFollower(s)
	broken := errors.New("broken")
	if err := f.Follow(t.Context(), func(e kubeapi.WatchEvent) error {
		if e.Type == kubeapi.Added {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	follow(t, f).want("[", "+a", "]")
}

// TestRotation replaces the token and the CA.
func TestRotation(t *testing.T) {
	s := apiserver.Start(t)
	ca := s.SetCA([]byte("no certificate"))
	r := follow(t, podFollower(s))
	r.waitErr("no certificate")
	s.SetCA([]byte(otherCA))
	r.waitErr("certificate signed by unknown authority")
	s.SetCA(ca)
	r.want("[", "]")
	s.Set("pods", "a", pod("a"))
	r.want("+a") // the watch has begun
	s.SetToken("expired")
	s.Stop()
	s.Resume()
	r.waitErr("401 Unauthorized by the simulated API server")
	s.SetToken(apiserver.Token)
	r.want("r")
	s.SetToken("with space")
	s.Stop()
	s.Resume()
	r.waitErr("no token")
}

func TestRejected(t *testing.T) {
	s := apiserver.Start(t)
	s.Reject(func(string, string) int { return http.StatusForbidden })
	f := podFollower(s)
	err := f.Follow(t.Context(), func(kubeapi.WatchEvent) error { return nil })
	if !kubeapi.IsCode(err, http.StatusForbidden) || !strings.Contains(err.Error(), "GET /api/v1/pods?") {
		t.Errorf("got %v", err)
	}
	if _, err := s.Client().Do(t.Context(), http.MethodPost, "/api/v1/namespaces/a/events", "application/json", []byte("{}")); !kubeapi.IsCode(err, http.StatusForbidden) {
		t.Errorf("got %v", err)
	}
}

// TestPath checks the requests of lists and watches.
func TestPath(t *testing.T) {
	var got []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		q.Del("timeoutSeconds")
		got = append(got, r.URL.Path+" "+q.Encode()+" "+r.Header.Get("Accept"))
		if q.Get("watch") == "" {
			_, _ = io.WriteString(w, emptyList)
		}
	})
	f := &kubeapi.Follower{Client: c, Path: "/api/v1/nodes", FieldSelector: "metadata.name=a"}
	for range 2 {
		require.NoError(t, f.Follow(t.Context(), func(kubeapi.WatchEvent) error { return nil }))
	}
	const watch = "/api/v1/nodes allowWatchBookmarks=true&fieldSelector=metadata.name%3Da&resourceVersion=7&watch=true application/json"
	want := []string{
		"/api/v1/nodes fieldSelector=metadata.name%3Da&resourceVersion=0 application/json", watch, watch,
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestBadResponses checks that invalid and truncated responses are errors, and that a truncated list never counts as complete.
func TestBadResponses(t *testing.T) {
	whole := fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[%s,%s]}`, pod("a"), pod("b"))
	large := fmt.Sprintf(`{"metadata":{"resourceVersion":"7"},"items":[{"a":"%s`, strings.Repeat("x", 5<<20))
	cases := map[string]string{
		"empty": "", "HTML": "<html>", "protobuf": "k8s\x00\x12\x05", "no list": `"a"`, "no metadata": `{"kind":"PodList"}`,
		"no version": fmt.Sprintf(`{"items":[%s]}`, pod("a")), "part": `{"metadata":{"resourceVersion":"7","continue":"next"},"items":[]}`,
		"items": `{"metadata":{"resourceVersion":"7"},"items":7}`, "large object": large + `"}]}`, "large key": `{"` + large,
	}
	for n := 1; n < len(whole); n++ {
		cases[fmt.Sprintf("%d bytes", n)] = whole[:n]
	}
	for name, body := range cases {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		f := &kubeapi.Follower{Client: c, Path: "/api/v1/pods"}
		ended := false
		err := f.Follow(t.Context(), func(e kubeapi.WatchEvent) error {
			ended = ended || e.Type == kubeapi.ListEnded
			return nil
		})
		if err == nil || ended {
			t.Errorf("%s: got error %v, list ended: %t", name, err, ended)
		}
	}
}

// TestBadWatchEvents checks that an invalid event ends the watch with an error.
func TestBadWatchEvents(t *testing.T) {
	for name, body := range map[string]string{
		"large event":    event("ADDED", `"`+strings.Repeat("x", 5<<20)+`"`),
		"cut event":      `{"type":"ADDED","obj`,
		"empty event":    "{}",
		"unknown type":   event("LATER", pod("a")),
		"no version":     event("ADDED", pod("a")),
		"no object":      `{"type":"ADDED"}`,
		"invalid object": event("ADDED", `{"metadata":7}`),
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				_, _ = io.WriteString(w, emptyList)
				return
			}
			_, _ = io.WriteString(w, body)
		})
		f := &kubeapi.Follower{Client: c, Path: "/api/v1/pods"}
		var added bool
		err := f.Follow(t.Context(), func(e kubeapi.WatchEvent) error {
			added = added || e.Type == kubeapi.Added
			return nil
		})
		if err == nil || added {
			t.Errorf("%s: got error %v, handled: %t", name, err, added)
		}
	}
}

const emptyList = `{"metadata":{"resourceVersion":"7"},"items":null}`

func event(kind, object string) string { return fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object) }

// serve returns a client of a server with a handler.
func serve(t *testing.T, handler http.HandlerFunc) *kubeapi.Client {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	o := apiserver.Start(t).Options() // the same certificate
	o.Server = server.URL
	return kubeapi.New(o)
}
