package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func TestNodeFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		node string
		want string
	}{
		{[]string{"--pods"}, "", "podgauge-kube: set NODE_NAME in the environment to the name of the node"},
		{nil, "a", "podgauge-kube: set --pods, --config-label or --admin-claims"},
		{[]string{"--pods", "--config-default=x"}, "a", "podgauge-kube: --config-default requires --config-label"},
		{[]string{"--config-label=a b"}, "a", `podgauge-kube: --config-label "a b": `},
		{[]string{"--pods", "more"}, "a", `podgauge-kube: unknown command "more" for "node"`},
		{[]string{"--pods"}, "a", "podgauge-kube: find the API server: unable to load in-cluster configuration"},
	} {
		t.Setenv("NODE_NAME", test.node)
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		c := newNodeCommand(func() (*slog.Logger, error) { return slog.New(slog.DiscardHandler), nil })
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs(append([]string{}, test.args...))
		var stderr strings.Builder
		status := cli.Exit(&stderr, "podgauge-kube", c.ExecuteContext(t.Context()))
		if status == 0 || !strings.HasPrefix(stderr.String(), test.want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: got status %d, %q, want %q", test.args, status, stderr.String(), test.want)
		}
	}
}

// TestOnceWithoutAPIServer has an API server that does not answer.
func TestOnceWithoutAPIServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	var log testlog.Buffer
	o := &nodeOptions{
		dir: filepath.Join(t.TempDir(), "dir"), node: "a", once: true, pods: true, adminClaims: true, timeout: 100 * time.Millisecond,
		configLabel: "config", configDefault: "standard", log: log.Logger(),
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	for _, want := range []string{"standard\n", "known before\n"} {
		begin := time.Now()
		require.NoError(t, o.run(t.Context(), client))
		if got, err := os.ReadFile(filepath.Join(o.dir, "config-name")); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		if took := time.Since(begin); took < o.timeout {
			t.Errorf("got the end after %s", took)
		}
		if _, err := os.Stat(filepath.Join(o.dir, "admin-claims")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("claims of an unknown node: got %v", err)
		}
		require.NoError(t, os.WriteFile(filepath.Join(o.dir, "config-name"), []byte("known before\n"), 0o600))
	}
	if n := log.Count("no answer of the API server"); n != 4 {
		t.Errorf("log: got %s", log.String())
	}
}

// newAPIServer returns a fake API server with a node, a pod and its claim.
func newAPIServer() *fake.Clientset {
	meta := metav1.ObjectMeta{Namespace: "team", Name: "monitor", UID: "1"}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: meta,
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.nvidia.com", Pool: "a", Device: "gpu-0", AdminAccess: new(true)}},
		}}},
	}
	return fake.NewClientset(claim, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"config": "shared"}}},
		&v1.Pod{ObjectMeta: meta, Spec: v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{{Name: "c", ResourceClaimName: new("monitor")}}}})
}

// resources returns the resources of requests, which must be reads.
func resources(t *testing.T, actions ...k8stesting.Action) string {
	t.Helper()
	verbs := map[string][]string{
		"nodes": {"list", "watch"}, "pods": {"list", "watch"}, "resourceclaims": {"get"},
	}
	var used []string
	for _, a := range actions {
		resource := a.GetResource().Resource
		if !slices.Contains(verbs[resource], a.GetVerb()) {
			t.Errorf("got a request %s %s", a.GetVerb(), resource)
		}
		used = append(used, resource)
	}
	slices.Sort(used)
	return strings.Join(slices.Compact(used), " ")
}

// TestNode enables features one by one, and checks their output and that no
// other feature sends requests.
func TestNode(t *testing.T) {
	const label, claims, socket = "config-name", "admin-claims", "pods-api.sock"
	for name, test := range map[string]struct {
		options   nodeOptions
		want      []string
		resources string
	}{
		"pods":         {nodeOptions{pods: true}, []string{socket}, "pods"},
		"label":        {nodeOptions{configLabel: "config"}, []string{label}, "nodes"},
		"admin claims": {nodeOptions{adminClaims: true}, []string{claims}, "pods resourceclaims"},
		"all": {
			nodeOptions{pods: true, configLabel: "config", adminClaims: true},
			[]string{claims, label, socket},
			"nodes pods resourceclaims",
		},
		"label once": {nodeOptions{once: true, pods: true, configLabel: "config"}, []string{label}, "nodes"},
		"pods once":  {nodeOptions{once: true, pods: true}, nil, ""},
		"all of it once": {
			nodeOptions{once: true, pods: true, configLabel: "config", adminClaims: true},
			[]string{claims, label},
			"nodes pods resourceclaims",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := newAPIServer()
			o := test.options
			o.dir, o.node, o.timeout, o.log = background.Dir(t), "a", time.Minute, slog.New(slog.NewTextHandler(io.Discard, nil))
			ended := make(chan struct{})
			stop := background.Run(t, func(ctx context.Context) error {
				defer close(ended)
				return o.run(ctx, client)
			})
			for _, name := range test.want {
				waitForFile(t, filepath.Join(o.dir, name), map[string]string{
					label: "shared\n", claims: "team/monitor/gpu.nvidia.com\n", socket: "",
				}[name])
			}
			if o.once {
				<-ended
			} else if slices.Contains(test.want, socket) {
				listPods(t, filepath.Join(o.dir, socket))
			}
			files, err := filepath.Glob(filepath.Join(o.dir, "*"))
			require.NoError(t, err)
			for i := range files {
				files[i] = filepath.Base(files[i])
			}
			stop()
			got := resources(t, client.Actions()...)
			if !slices.Equal(files, test.want) || got != test.resources {
				t.Errorf("got files %v, requests for %q, want %v, %q", files, got, test.want, test.resources)
			}
		})
	}
}

// waitForFile waits for a file with a content; for a socket, the content is
// empty.
func waitForFile(t *testing.T, path, content string) {
	t.Helper()
	program.WaitUntil(t, path+" has "+content, func() bool {
		got, _ := os.ReadFile(path) // a socket cannot be read
		_, err := os.Stat(path)
		return err == nil && string(got) == content
	})
}

// listPods waits for one pod.
func listPods(t *testing.T, socket string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	program.WaitUntil(t, "the list has one pod", func() bool {
		list, err := api.NewPodsClient(conn).ListPods(t.Context(), &api.ListPodsRequest{})
		return err == nil && len(list.Pods) == 1
	})
}
