package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
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
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
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
		expect.Contains(t, scrape, want, "metrics")
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
	expect.Contains(t, s.object(lease), `"holderIdentity":""`)
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

// replica is a replica of the controller, which records what its task does.
type replica struct {
	stop  context.CancelFunc
	tasks chan string // "begin", "end"
	done  chan error
}

func startReplica(ctx context.Context, client *fake.Clientset, err error) *replica {
	ctx, cancel := context.WithCancel(ctx)
	r := &replica{stop: cancel, tasks: make(chan string, 2), done: make(chan error, 1)}
	e := election{enabled: true, namespace: "podgauge", name: "podgauge-kube"}
	go func() {
		r.done <- e.lead(ctx, client, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			r.tasks <- "begin"
			<-ctx.Done()
			time.Sleep(time.Second) // the last request
			r.tasks <- "end, holder " + holder(client)
			return err
		})
	}()
	return r
}

// holder returns the host of the lease's holder.
func holder(client *fake.Clientset) string {
	lease, err := client.CoordinationV1().Leases("podgauge").Get(context.Background(), "podgauge-kube", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if id := *lease.Spec.HolderIdentity; id == "" {
		return "nobody"
	}
	return "somebody"
}

// TestElection checks that one of two replicas leads, and that the other one follows at once when it ends, but not
// before its last request.
func TestElection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := startReplica(t.Context(), client, nil)
		expect.Equal(t, <-first.tasks, "begin")
		second := startReplica(t.Context(), client, nil)
		time.Sleep(time.Minute)
		if len(second.tasks) != 0 {
			t.Error("two replicas lead")
		}
		first.stop()
		if got := <-first.tasks; got != "end, holder somebody" {
			t.Errorf("got %s, want the lease until the end of the task", got)
		}
		expect.NoError(t, <-first.done)
		begin := time.Now()
		if <-second.tasks; time.Since(begin) > 3*retryPeriod { // client-go waits for up to 2.2 periods
			t.Errorf("the second replica follows after %s", time.Since(begin))
		}
		third := startReplica(t.Context(), client, nil)
		synctest.Wait()
		third.stop() // without the lease
		second.stop()
		if err := errors.Join(<-second.done, <-third.done); err != nil || holder(client) != "nobody" {
			t.Errorf("got error %v, lease of %s", err, holder(client))
		}
	})
}

// TestLostLease checks that a leader that cannot renew the lease ends its task and returns an error.
func TestLostLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var down atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("no API server")
		})
		r := startReplica(t.Context(), client, nil)
		<-r.tasks
		begin := time.Now()
		down.Store(true)
		expect.Error(t, <-r.done, "lost the lease")
		if d := time.Since(begin); d > leaseDuration {
			t.Errorf("the task ended after %s, when another replica may lead", d)
		}
		if len(r.tasks) != 1 {
			t.Error("the task did not end")
		}
	})
}

// TestFailedTask checks that the error of a task ends the process.
func TestFailedTask(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		failure := errors.New("broken")
		r := startReplica(t.Context(), fake.NewClientset(), failure)
		<-r.tasks
		r.stop()
		expect.ErrorIs(t, <-r.done, failure)
		e, ran := election{}, false
		if err := e.lead(t.Context(), nil, nil, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("without election: got %v", err)
		}
	})
}

var update = flag.Bool("update", false, "write docs/reference/podgauge-kube.md")

// TestFlagTables checks that docs/reference/podgauge-kube.md has the flags.
func TestFlagTables(t *testing.T) {
	log := &pflag.FlagSet{}
	(&cli.LogOptions{}).AddFlags(log)
	docs.CheckTables(t, *update, "../../../docs/reference/podgauge-kube.md", map[string]string{
		"controller": flagTable(newControllerCommand(nil).Flags()),
		"node":       flagTable(newNodeCommand(nil).Flags()),
		"log":        flagTable(log),
	})
}

// flagTable returns the flags in the order of --help.
func flagTable(flags *pflag.FlagSet) string {
	table := strings.Builder{}
	table.WriteString("|flag|default|purpose|\n|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		_, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(&table, "|`--%s`|%s|%s|\n", f.Name, value, strings.ReplaceAll(usage, "|", `\|`))
	})
	return table.String()
}
