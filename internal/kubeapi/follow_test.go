package kubeapi_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/wire"
	"github.com/podgauge/podgauge/test/apiserver"
)

// testTimeout is the maximum wait for an event that takes milliseconds.
const testTimeout = 20 * time.Second

// recorder runs a Follower and records events: "+a", "~a" and "-a" for pods, "[", "]" and "r" for lists and resumptions.
type recorder struct {
	t      *testing.T
	events chan string
	errs   chan error
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
	r.events <- sign + nameOf(r.t, e.Object)
	return nil
}

func nameOf(t *testing.T, object []byte) string {
	metadata, err := wire.Last(object, 1<<3|wire.Length)
	name, nameErr := wire.Last(metadata.Bytes, 1<<3|wire.Length)
	if err := errors.Join(err, nameErr); err != nil {
		t.Error(err)
	}
	return string(name.Bytes)
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

func pod(name string) []byte { return message(1, message(1, []byte(name))) }

func message(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

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
			_, _ = w.Write(envelope(message(1, message(2, []byte("7")))))
		}
	})
	f := &kubeapi.Follower{Client: c, Path: "/api/v1/nodes", FieldSelector: "metadata.name=a", MetadataOnly: true}
	for range 2 {
		if err := f.Follow(t.Context(), func(kubeapi.WatchEvent) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	const watch = "/api/v1/nodes allowWatchBookmarks=true&fieldSelector=metadata.name%3Da&resourceVersion=7&watch=true " +
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch"
	want := []string{
		"/api/v1/nodes fieldSelector=metadata.name%3Da&resourceVersion=0 application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		watch, watch,
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestBadResponses checks that invalid and truncated responses are errors, and that a truncated list never counts as complete.
func TestBadResponses(t *testing.T) {
	list := func(items ...[]byte) []byte {
		b := message(1, message(2, []byte("7")))
		for _, item := range items {
			b = append(b, message(2, item)...)
		}
		return b
	}
	whole := envelope(list(pod("a"), pod("b")))
	large := append([]byte("k8s\x00"), protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), 1<<30)...)
	large = append(large, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), 1<<29)...)
	cases := map[string][]byte{
		"empty": nil, "HTML": []byte("<html>"), "JSON": []byte(`{"kind":"PodList"}`),
		"no version": envelope(message(2, pod("a"))), "part": envelope(message(1, append(message(2, []byte("7")), message(3, []byte("next"))...))),
		"large object": large,
	}
	for n := 1; n < len(whole); n++ {
		cases[fmt.Sprintf("%d bytes", n)] = whole[:n]
	}
	for name, body := range cases {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
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
	for name, body := range map[string][]byte{
		"huge frame":     {0xff, 0xff, 0xff, 0xff},
		"cut length":     {0, 0},
		"cut event":      {0, 0, 0, 9, 1},
		"empty event":    {0, 0, 0, 0},
		"unknown type":   event("LATER", pod("a")),
		"no version":     event("ADDED", pod("a")),
		"invalid object": event("ADDED", []byte{0xff}),
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				body := envelope(message(1, message(2, []byte("7"))))
				_, _ = w.Write(body)
				return
			}
			_, _ = w.Write(body)
		})
		f := &kubeapi.Follower{Client: c, Path: "/api/v1/pods"}
		var added bool
		err := f.Follow(t.Context(), func(e kubeapi.WatchEvent) error {
			added = added || e.Type == kubeapi.Added
			return nil
		})
		if err == nil || errors.Is(err, io.EOF) && name != "cut length" || added {
			t.Errorf("%s: got error %v, handled: %t", name, err, added)
		}
	}
}

func envelope(object []byte) []byte { return append([]byte("k8s\x00"), message(2, object)...) }

func event(kind string, object []byte) []byte {
	e := append(message(1, []byte(kind)), message(2, message(1, envelope(object)))...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(e))), e...)
}

// serve returns a client of a server with a handler.
func serve(t *testing.T, handler http.HandlerFunc) *kubeapi.Client {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	o := apiserver.Start(t).Options() // the same certificate
	o.Server = server.URL
	c, err := kubeapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
