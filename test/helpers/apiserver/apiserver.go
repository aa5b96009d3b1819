// Package apiserver simulates the API server for tests: HTTPS with a token,
// lists and watches of pods and nodes, events and the status of nodes.
package apiserver

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/internal/kubeapi"
)

// Token is the accepted token.
const Token = "secret-token"

// Server is a running simulated API server.
type Server struct {
	t       testing.TB
	dir     string
	address string

	mu sync.Mutex
	// All below are guarded by mu.
	http       *httptest.Server // nil while stopped
	stopped    chan struct{}    // closed by Stop; ends all requests
	version    int
	history    []change      // of all resources, oldest first
	compacted  int           // older versions have expired
	changed    chan struct{} // closed by the next change
	events     map[string]map[string]any
	conditions map[string]map[string]any // by type
	json       map[string]string         // responses by path; empty: not found
	requests   []string                  // method and path
	reject     func(method, path string) int
}

// change is a version of an object. A deletion has the last version of the
// object.
type change struct {
	resource, key string
	kind          string // "ADDED", "MODIFIED", "DELETED"
	version       int
	object        map[string]any
}

// Start starts a server with a CA of its own, until the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		t: t, dir: t.TempDir(), version: 100, changed: make(chan struct{}),
		events: map[string]map[string]any{}, conditions: map[string]map[string]any{}, json: map[string]string{},
	}
	s.SetToken(Token)
	s.Resume()
	t.Cleanup(s.Stop)
	return s
}

// Options are the client's options.
func (s *Server) Options() kubeapi.Options {
	return kubeapi.Options{
		Server: "https://" + s.address, TokenFile: filepath.Join(s.dir, "token"),
		CAFile: filepath.Join(s.dir, "ca.crt"),
	}
}

// Client returns a client.
func (s *Server) Client() *kubeapi.Client {
	s.t.Helper()
	return kubeapi.New(s.Options())
}

// SetToken replaces the client's token file.
func (s *Server) SetToken(token string) { s.write("token", []byte(token)) }

// SetCA replaces the client's CA file, and returns the file before.
func (s *Server) SetCA(data []byte) (before []byte) {
	before, err := os.ReadFile(s.Options().CAFile)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("ca.crt", data)
	return before
}

func (s *Server) write(name string, data []byte) {
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// Stop closes all connections and the listener.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.http
	s.http = nil
	if server != nil {
		close(s.stopped)
	}
	s.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		server.Close()
	}
}

// Resume starts a stopped server on the same address.
func (s *Server) Resume() {
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if s.address != "" {
		listener, err := net.Listen("tcp", s.address)
		if err != nil {
			s.t.Fatal(err)
		}
		_ = server.Listener.Close()
		server.Listener = listener
	}
	s.mu.Lock()
	s.http, s.stopped = server, make(chan struct{})
	s.mu.Unlock()
	server.StartTLS()
	s.address = server.Listener.Addr().String()
	s.write("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// Reject makes the server answer requests with a status; nil or status 0:
// handle the request. Status -1: never answer.
func (s *Server) Reject(status func(method, path string) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reject = status
}

// Set adds or replaces an object of "pods" or "nodes", whose JSON has no
// resource version.
func (s *Server) Set(resource, key, text string) {
	s.t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		s.t.Error(err)
	}
	kind := "ADDED"
	if s.find(resource, key) != nil {
		kind = "MODIFIED"
	}
	s.record(resource, key, kind, object)
}

// Delete deletes an object.
func (s *Server) Delete(resource, key string) {
	if last := s.find(resource, key); last != nil {
		s.record(resource, key, "DELETED", last.object)
	}
}

// SetNodeLabels sets a node with labels.
func (s *Server) SetNodeLabels(name string, labels map[string]string) {
	object, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": name, "labels": labels}})
	if err != nil {
		s.t.Error(err)
	}
	s.Set("nodes", name, string(object))
}

// SetJSON sets the response to GET of a path; empty: not found.
func (s *Server) SetJSON(path, response string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.json[path] = response
}

// Compact makes all versions until now expire, as etcd's compaction or a
// restart does, and ends all watches.
func (s *Server) Compact() {
	s.mu.Lock()
	s.version++
	s.compacted = s.version
	server := s.http
	s.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
	}
}

// Events returns the Kubernetes events by namespace and name.
func (s *Server) Events() map[string]map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copyOf(s.t, s.events)
}

// Conditions returns the conditions of the node by type.
func (s *Server) Conditions() map[string]map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copyOf(s.t, s.conditions)
}

// SetCondition sets a condition of the node, as Kubernetes' JSON has it.
func (s *Server) SetCondition(condition map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conditions[fmt.Sprint(condition["type"])] = condition
}

// Requests returns method and path of all requests so far.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func copyOf(t testing.TB, v map[string]map[string]any) (c map[string]map[string]any) {
	data, err := json.Marshal(v)
	if err != nil || json.Unmarshal(data, &c) != nil {
		t.Error(err)
	}
	return c
}

func (s *Server) find(resource, key string) *change {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range slices.Backward(s.history) {
		if c.resource == resource && c.key == key {
			if c.kind == "DELETED" {
				return nil
			}
			return &c
		}
	}
	return nil
}

func (s *Server) record(resource, key, kind string, object map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.history = append(s.history, change{resource, key, kind, s.version, object})
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	code := 0
	if s.reject != nil {
		code = s.reject(r.Method, r.URL.Path)
	}
	stopped, response := s.stopped, s.json[r.URL.Path]
	s.mu.Unlock()
	part := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	switch {
	case code < 0:
		select {
		case <-stopped:
		case <-r.Context().Done():
		}
	case r.Header.Get("Authorization") != "Bearer "+Token:
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case code > 0:
		fail(w, code, http.StatusText(code))
	case r.Method == http.MethodGet && response != "":
		_, _ = io.WriteString(w, response)
	case r.Method == http.MethodGet && len(part) == 1 && r.URL.Query().Get("watch") == "true":
		s.watch(w, r, part[0], stopped)
	case r.Method == http.MethodGet && len(part) == 1:
		s.list(w, part[0])
	case r.Method == http.MethodPost && len(part) == 3 && part[2] == "events":
		s.createEvent(w, r, part[1])
	case r.Method == http.MethodPatch && len(part) == 4 && part[2] == "events":
		s.patchEvent(w, r, part[1]+"/"+part[3])
	case r.Method == http.MethodPatch && len(part) == 3 && part[0] == "nodes" && part[2] == "status":
		s.patchNode(w, r)
	default:
		fail(w, http.StatusNotFound, "the server could not find the requested resource")
	}
}

// fail answers with a Status.
func fail(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reason))
}

func status(code int, reason string) map[string]any {
	return map[string]any{"kind": "Status", "code": code, "reason": reason, "message": reason +
		" by the simulated API server"}
}

func (s *Server) list(w http.ResponseWriter, resource string) {
	s.mu.Lock()
	items, newest := []any{}, map[string]change{}
	metadata := map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	for _, c := range s.history {
		if c.resource == resource {
			newest[c.key] = c
		}
	}
	for _, c := range newest {
		if c.kind != "DELETED" {
			items = append(items, c.withVersion())
		}
	}
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "metadata": metadata, "items": items})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string, stopped <-chan struct{}) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for {
		s.mu.Lock()
		changed, events := s.changed, []any(nil)
		if from < s.compacted {
			events = []any{event("ERROR", status(http.StatusGone, "Expired"))}
		} else {
			for _, c := range s.history {
				if c.version > from && c.resource == resource {
					events = append(events, event(c.kind, c.withVersion()))
				}
			}
			from = max(from, s.version)
			events = append(events, event("BOOKMARK", withVersion(nil, from)))
		}
		expired := from < s.compacted
		s.mu.Unlock()
		for _, e := range events {
			_ = json.NewEncoder(w).Encode(e)
		}
		w.(http.Flusher).Flush()
		if expired {
			return
		}
		select {
		case <-stopped:
			return
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (s *Server) createEvent(w http.ResponseWriter, r *http.Request, namespace string) {
	var e map[string]any
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	metadata, _ := e["metadata"].(map[string]any)
	key := fmt.Sprintf("%s/%v", namespace, metadata["name"])
	s.mu.Lock()
	_, exists := s.events[key]
	if !exists {
		s.events[key] = e
	}
	s.mu.Unlock()
	if exists {
		fail(w, http.StatusConflict, "AlreadyExists")
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e)
}

func (s *Server) patchEvent(w http.ResponseWriter, r *http.Request, key string) {
	var patch map[string]any
	err := json.NewDecoder(r.Body).Decode(&patch)
	s.mu.Lock()
	e, found := s.events[key]
	if found && err == nil {
		maps.Copy(e, patch)
	}
	s.mu.Unlock()
	switch {
	case err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json":
		fail(w, http.StatusBadRequest, "BadRequest")
	case !found:
		fail(w, http.StatusNotFound, "NotFound")
	default:
		_, _ = w.Write([]byte("{}"))
	}
}

func (s *Server) patchNode(w http.ResponseWriter, r *http.Request) {
	var patch struct {
		Status struct{ Conditions []map[string]any }
	}
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil ||
		r.Header.Get("Content-Type") != "application/strategic-merge-patch+json" {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	s.mu.Lock()
	for _, c := range patch.Status.Conditions {
		s.conditions[fmt.Sprint(c["type"])] = c
	}
	conditions := slices.Collect(maps.Values(s.conditions))
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Node", "status": map[string]any{"conditions": conditions}})
}

func (c *change) withVersion() map[string]any { return withVersion(c.object, c.version) }

// withVersion returns a copy of the object with the version in its metadata.
func withVersion(object map[string]any, version int) map[string]any {
	metadata, _ := object["metadata"].(map[string]any)
	metadata, object = maps.Clone(metadata), maps.Clone(object)
	if object == nil {
		object = map[string]any{}
	}
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["resourceVersion"] = strconv.Itoa(version)
	object["metadata"] = metadata
	return object
}

func event(kind string, object map[string]any) map[string]any {
	return map[string]any{"type": kind, "object": object}
}
