package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer is an API server with a pod of podgauge, which keeps written objects by path.
type apiServer struct {
	*httptest.Server
	pod corev1.Pod
	mu  sync.Mutex
	// objects are as written last; guarded by mu.
	objects map[string]string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err == nil { // not a patch
		body, _ = json.Marshal(object)
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/pods") {
		s.watchPods(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		if s.objects[r.URL.Path] == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		io.WriteString(w, s.objects[r.URL.Path])
	case http.MethodPost:
		s.objects[r.URL.Path+"/"+object.(metav1.Object).GetName()] = string(body)
		w.WriteHeader(http.StatusCreated)
		w.Write(body)
	default:
		s.objects[r.URL.Path] = string(body)
		w.Write(body)
	}
}

// watchPods sends the pod, and then nothing more.
func (s *apiServer) watchPods(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("labelSelector") != "app=podgauge" || r.URL.Query().Get("watch") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	encoder := json.NewEncoder(w)
	encoder.Encode(map[string]any{"type": "ADDED", "object": s.pod})
	end := corev1.Pod{TypeMeta: s.pod.TypeMeta}
	end.ResourceVersion, end.Annotations = "1", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	encoder.Encode(map[string]any{"type": "BOOKMARK", "object": end})
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (s *apiServer) object(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

// kubeconfig writes the configuration of a client.
func (s *apiServer) kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "podgauge"}}]}`, s.URL)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestController checks the whole program: from a fault on a node to the event, the condition and the metrics.
func TestController(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		json.NewEncoder(w).Encode(api.NodeResponse{
			At: now, Driver: api.DriverJSON{State: "up"},
			Devices: []api.DeviceJSON{{ID: "GPU-1", GPU: "GPU-1", Reason: "xid_79", Action: "reboot"}},
			Incidents: []incident.Incident{{
				ID: 1, First: now, Last: now, Count: 1, Device: "GPU-1", GPU: "GPU-1", Reason: "xid_79", MarkedUnhealthy: true,
			}},
		})
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer node.Close()
	host, port, _ := strings.Cut(strings.TrimPrefix(node.URL, "http://"), ":")
	s := &apiServer{objects: map[string]string{}, pod: corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "podgauge", Name: "podgauge-1", UID: "1", ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: "node-a"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: host},
	}}
	s.Server = httptest.NewServer(s)
	defer s.Close()

	address := program.FreeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	var stderr testlog.Buffer
	defer func() {
		if t.Failed() {
			t.Log(stderr.String())
		}
	}()
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, io.Discard, &stderr, []string{
			"controller", "--kubeconfig=" + s.kubeconfig(t), "--selector=app=podgauge", "--port=" + port, "--events",
			"--node-condition=eks", "--web.listen-address=" + address, "--log.format=json",
		})
	}()
	get := func(path string) string {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.Status + "\n" + string(body)
	}
	const eventPath = "/api/v1/namespaces/default/events/node-a.0000000000000001"
	program.WaitUntil(t, "event", func() bool { return strings.Contains(s.object(eventPath), "GPUUnhealthy") })
	program.WaitUntil(t, "condition", func() bool {
		return strings.Contains(s.object("/api/v1/nodes/node-a/status"), `"type":"AcceleratedHardwareReady","status":"False"`)
	})
	const lease = "/apis/coordination.k8s.io/v1/namespaces/podgauge/leases/podgauge-kube"
	if s.object(lease) == "" {
		t.Errorf("got no lease in %v", s.objects)
	}
	scrape := get("/metrics")
	for _, want := range []string{
		"podgauge_kube_leader 1\n", `podgauge_kube_nodes{state="followed"} 1` + "\n", "podgauge_kube_events_dropped_total 0\n",
		`podgauge_kube_nodes{state="unreachable"} 0` + "\n", `podgauge_kube_requests_total{code="201"} 2` + "\n",
	} {
		if !strings.Contains(scrape, want) {
			t.Errorf("got no %q in %s", want, scrape)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := get(path); !strings.HasPrefix(got, "200 OK") {
			t.Errorf("%s: got %s", path, got)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if got := <-status; got != 0 {
		t.Errorf("got exit status %d: %s", got, stderr.String())
	}
	if !strings.Contains(s.object(lease), `"holderIdentity":""`) {
		t.Errorf("got lease %s, want no holder", s.object(lease))
	}
	for line := range strings.Lines(stderr.String()) { // of client-go, too
		if !json.Valid([]byte(line)) {
			t.Errorf("got line %s", line)
		}
	}
}

// TestCommandLine checks the errors of flags, each in one line.
func TestCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"":                                                "nothing to report: set --events, --node-condition or --device-taints",
		"--events --selector==":                           `--selector "=": `,
		"--events --node-scheme=ftp":                      `--node-scheme "ftp": expected http or https`,
		"--events --node-ca-file=x":                       "set --node-scheme=https",
		"--events --node-username=x":                      "--node-username, --node-password-file: set both or none of them",
		"--events --port=70000":                           "--port 70000: expected 1 to 65535",
		"--events --web.listen-address=x":                 `--web.listen-address "x": `,
		"--events --log.level=loud":                       `--log.level "loud": expected debug, info, warn or error`,
		"--events --log.format=xml":                       `--log.format "xml": expected logfmt or json`,
		"--node-condition=gke":                            `--node-condition "gke": expected podgauge, eks or aks`,
		"--node-condition=eks --node-condition.reasons=x": "--node-condition.reasons",
		"--device-taints --device-taints.effects=gpu=off": `--device-taints.effects: parse effects: unknown class "gpu": `,
		"--unknown":                                       "unknown flag: --unknown",
		"more":                                            `unknown command "more"`,
	} {
		var stderr bytes.Buffer
		status := run(t.Context(), io.Discard, &stderr, append([]string{"controller"}, strings.Fields(args)...))
		if got := stderr.String(); status != 2 || !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: got status %d and %q, want %s", args, status, got, want)
		}
	}
	for args, want := range map[string]string{
		"--kubeconfig=/missing": "find API server: ",
		"--kubeconfig=KUBECONFIG --node-scheme=https --node-ca-file=/none": "prepare https: ",
		"--kubeconfig=KUBECONFIG --web.listen-address=192.0.2.1:1":         "serve metrics: ",
	} {
		s := &apiServer{Server: httptest.NewServer(http.NotFoundHandler())}
		args = strings.ReplaceAll(args, "KUBECONFIG", s.kubeconfig(t))
		var stderr bytes.Buffer
		status := run(t.Context(), io.Discard, &stderr, append([]string{"controller", "--events"}, strings.Fields(args)...))
		if got := stderr.String(); status != 1 || !strings.Contains(got, "podgauge-kube: "+want) {
			t.Errorf("%s: got status %d and %q, want %s", args, status, got, want)
		}
		s.Close()
	}
	var stdout bytes.Buffer
	if status := run(t.Context(), &stdout, io.Discard, []string{"version"}); status != 0 || stdout.String() != "podgauge-kube dev\n" {
		t.Errorf("version: got %d, %q", status, stdout.String())
	}
}
