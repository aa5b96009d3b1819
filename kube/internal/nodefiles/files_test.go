package nodefiles_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/kube/internal/nodefiles"
	"github.com/podgauge/podgauge/kube/internal/source"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is an API server with one file of the sidecar.
type cluster struct {
	*fake.Clientset

	t    *testing.T
	path string
	log  testlog.Buffer

	mu      sync.Mutex
	refused error             // of requests; guarded by mu
	watches []watch.Interface // guarded by mu
}

// newCluster returns an API server, within a bubble.
func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	c := &cluster{Clientset: fake.NewClientset(objects...), t: t, path: filepath.Join(t.TempDir(), "file")}
	c.PrependReactor("list", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.refused != nil, nil, c.refused
	})
	c.PrependWatchReactor("*", func(action k8stesting.Action) (bool, watch.Interface, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refused != nil {
			return true, nil, c.refused
		}
		w, err := c.Tracker().Watch(action.GetResource(), "", action.(k8stesting.WatchActionImpl).ListOptions)
		c.watches = append(c.watches, w)
		return true, w, err
	})
	return c
}

// outage refuses requests and ends the watches; nil ends it.
func (c *cluster) outage(err error) {
	c.refuse(err)
	time.Sleep(5 * time.Minute) // above client-go's backoff
}

func (c *cluster) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = err
	if err != nil {
		for _, w := range c.watches {
			w.Stop()
		}
		c.watches = nil
	}
}

// want checks the content after all goroutines are idle.
func (c *cluster) want(what, content string) {
	c.t.Helper()
	synctest.Wait()
	if got, err := os.ReadFile(c.path); err != nil || string(got) != content {
		c.t.Errorf("%s: got %q, %v, want %q\n%s", what, got, err, content, c.log.String())
	}
}

func (c *cluster) setLabels(labels map[string]string) {
	c.t.Helper()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: labels}}
	_, err := c.CoreV1().Nodes().Update(c.t.Context(), node, metav1.UpdateOptions{})
	require.NoError(c.t, err)
}

// labelFile returns a file whose source runs until stop.
func (c *cluster) labelFile() (f *nodefiles.LabelFile, stop func()) {
	c.t.Helper()
	node := source.Node(c, "a", c.log.Logger())
	f, err := nodefiles.NewLabelFile(c.path, node, "config", "standard", c.log.Logger())
	require.NoError(c.t, err)
	return f, background.Run(c.t, node.Run)
}

func newNode(labels map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: labels}}
}

// load loads the label once, as an init container does.
func (c *cluster) load() error {
	c.t.Helper()
	f, stop := c.labelFile()
	defer stop()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	return f.Load(ctx)
}

func TestLoadLabel(t *testing.T) {
	for name, test := range map[string]struct {
		node         *v1.Node
		before       string
		refused      error
		want, errHas string
	}{
		"label":                     {node: newNode(map[string]string{"config": "shared"}), want: "shared\n"},
		"no label":                  {node: newNode(map[string]string{"other": "x"}), before: "shared\n", want: "standard\n"},
		"empty label":               {node: newNode(map[string]string{"config": ""}), want: "standard\n"},
		"no node":                   {want: "standard\n", errHas: "no such node"},
		"no node, known before":     {before: "shared\n", want: "shared\n", errHas: "no such node"},
		"no API server":             {refused: errors.New("refused"), want: "standard\n", errHas: "read label config of the node: wait for the API server: refused"},
		"no API server, but before": {refused: errors.New("refused"), before: "shared\n", want: "shared\n", errHas: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := newCluster(t)
				if test.node != nil {
					require.NoError(t, c.Tracker().Add(test.node))
				}
				if test.before != "" {
					require.NoError(t, os.WriteFile(c.path, []byte(test.before), 0o600))
				}
				c.refuse(test.refused)
				err := c.load()
				if (err == nil) != (test.errHas == "") || err != nil && !strings.Contains(err.Error(), test.errHas) {
					t.Errorf("got %v, want %q", err, test.errHas)
				}
				c.want("file", test.want)
			})
		})
	}
}

// TestFollowLabel changes the label, also while the API server is away.
func TestFollowLabel(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, newNode(map[string]string{"config": "one"}))
		f, _ := c.labelFile()
		background.Run(t, f.Run)
		c.want("start", "one\n")
		c.setLabels(map[string]string{"config": "two"})
		c.want("other value", "two\n")
		c.outage(errors.New("refused"))
		c.setLabels(map[string]string{"config": "three"})
		c.want("outage", "two\n")
		c.outage(nil)
		c.want("after the outage", "three\n")
		c.setLabels(nil)
		c.want("no label", "standard\n")
		require.NoError(t, c.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
		c.want("no node", "standard\n")
		if n := c.log.Count("level=WARN"); n != 2 || c.log.Count("no such node") != 1 || c.log.Count("again") != 1 {
			t.Errorf("log: got %s", c.log.String())
		}
	})
}

// TestForbidden has no right to read the node for an hour: one message.
func TestForbidden(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, newNode(map[string]string{"config": "one"}))
		require.NoError(t, os.WriteFile(c.path, []byte("two\n"), 0o600))
		c.refuse(errors.New("forbidden"))
		f, _ := c.labelFile()
		background.Run(t, f.Run)
		time.Sleep(time.Hour)
		c.want("without a role", "two\n")
		if n := c.log.Count("\n"); n != 1 {
			t.Errorf("log: got %s", c.log.String())
		}
		c.outage(nil)
		c.want("with a role", "one\n")
	})
}

// TestFullDisk fails to write, and writes later.
func TestFullDisk(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, newNode(map[string]string{"config": "one"}))
		dir := filepath.Dir(c.path)
		require.NoError(t, os.Remove(dir))
		f, _ := c.labelFile()
		background.Run(t, f.Run)
		time.Sleep(time.Hour)
		require.NoError(t, os.Mkdir(dir, 0o700))
		time.Sleep(time.Minute)
		c.want("after the repair", "one\n")
		if c.log.Count("cannot update file") != 1 || c.log.Count("updated file again") != 1 {
			t.Errorf("log: got %s", c.log.String())
		}
	})
}

// result is a device that a claim has.
type result struct {
	driver string
	admin  bool
}

// newClaim returns a claim as any version has it; without results, it has no
// allocation.
func newClaim(version, name string, results ...result) *unstructured.Unstructured {
	var devices []any
	for _, r := range results {
		device := map[string]any{"request": "gpu", "driver": r.driver, "pool": "a", "device": "gpu-0"}
		if r.admin {
			device["adminAccess"] = true
		}
		devices = append(devices, device)
	}
	claim := map[string]any{
		"apiVersion": "resource.k8s.io/" + version, "kind": "ResourceClaim",
		"metadata": map[string]any{"namespace": "team", "name": name},
		"spec":     map[string]any{"devices": map[string]any{"requests": []any{map[string]any{"name": "gpu", "allocationMode": "All"}}}},
		"status":   map[string]any{},
	}
	if len(devices) > 0 {
		claim["status"] = map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": devices}}}
	}
	return &unstructured.Unstructured{Object: claim}
}

// claimsCluster is a cluster with claims of a version.
type claimsCluster struct {
	*cluster

	claims  *dynamicfake.FakeDynamicClient
	version string
}

func newClaimsCluster(t *testing.T, served []string, claims ...runtime.Object) *claimsCluster {
	t.Helper()
	c := newCluster(t)
	for _, v := range served {
		c.Resources = append(c.Resources, &metav1.APIResourceList{
			GroupVersion: "resource.k8s.io/" + v, APIResources: []metav1.APIResource{{Name: "resourceclaims"}},
		})
	}
	d := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), claims...)
	f, err := nodefiles.NewClaimsFile(c.path, c.startPods(), d, c.Discovery(), c.log.Logger())
	require.NoError(t, err)
	background.Run(t, f.Run)
	return &claimsCluster{c, d, served[0]}
}

func (c *cluster) startPods() *source.Source[*v1.Pod] {
	pods := source.Pods(c, "a", c.log.Logger())
	background.Run(c.t, pods.Run)
	return pods
}

// resource is the client of the claims.
func (c *claimsCluster) resource() dynamic.ResourceInterface {
	gvr := schema.GroupVersionResource{Group: "resource.k8s.io", Version: c.version, Resource: "resourceclaims"}
	return c.claims.Resource(gvr).Namespace("team")
}

// addPod adds a pod with claims; those with a prefix "~" are of templates.
func (c *cluster) addPod(name string, claims ...string) *v1.Pod {
	c.t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}}
	for _, claim := range claims {
		if generated, ok := strings.CutPrefix(claim, "~"); ok {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{ResourceClaimTemplateName: new("t")})
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses,
				v1.PodResourceClaimStatus{Name: "c", ResourceClaimName: new(generated)})
			continue
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{ResourceClaimName: new(claim)})
	}
	_, err := c.CoreV1().Pods("team").Create(c.t.Context(), p, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return p
}

// TestClaims adds and removes pods with claims, at each version of the API.
func TestClaims(t *testing.T) {
	const nvidia, other = "gpu.nvidia.com", "other.example.com"
	for _, served := range [][]string{{"v1", "v1beta2"}, {"v1beta2", "v1beta1"}, {"v1beta1"}} {
		t.Run(served[0], func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := served[0]
				c := newClaimsCluster(t, slices.Sorted(slices.Values(served)),
					newClaim(v, "monitor", result{nvidia, true}, result{nvidia, true}), newClaim(v, "train", result{nvidia, false}),
					newClaim(v, "mixed", result{nvidia, true}, result{nvidia, false}, result{other, true}), newClaim(v, "pending"))
				c.version = v
				c.want("no pod", "")
				c.addPod("job", "~train")
				c.want("without admin access", "")
				monitor := c.addPod("monitor", "~monitor")
				c.want("admin access", "team/monitor/gpu.nvidia.com\n")
				c.addPod("mixed", "mixed", "monitor")
				const all = "team/mixed/other.example.com\nteam/monitor/gpu.nvidia.com\n"
				c.want("admin access of one driver", all)
				c.addPod("pending", "pending", "missing")
				c.want("claims that cannot be read", all)
				_, err := c.resource().Update(t.Context(), newClaim(v, "pending", result{nvidia, true}), metav1.UpdateOptions{})
				require.NoError(t, err)
				time.Sleep(time.Minute)
				c.want("allocated later", all+"team/pending/gpu.nvidia.com\n")
				monitor.Status.Phase = v1.PodSucceeded
				_, err = c.CoreV1().Pods("team").Update(t.Context(), monitor, metav1.UpdateOptions{})
				require.NoError(t, err)
				require.NoError(t, c.CoreV1().Pods("team").Delete(t.Context(), "mixed", metav1.DeleteOptions{}))
				c.want("ended pods", "team/pending/gpu.nvidia.com\n")
				pattern, err := config.ParseClaimPattern("team/pending/gpu.nvidia.com")
				if claims := (config.ClaimsConfig{Ignore: []config.ClaimPattern{pattern}}); err != nil || !claims.Ignores("team", "pending", nvidia) {
					t.Errorf("podgauge does not ignore the claim: %v", err)
				}
				if n := c.log.Count("cannot update file"); n != 1 {
					t.Errorf("log: got %s", c.log.String())
				}
			})
		})
	}
}

// TestClaimsVersion upgrades the API server from v1beta1 to v1, and reads each
// claim once.
func TestClaimsVersion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newClaimsCluster(t, []string{"v1beta1"}, newClaim("v1beta1", "old", result{"d", true}), newClaim("v1", "new", result{"d", true}))
		c.addPod("a", "old")
		c.want("v1beta1", "team/old/d\n")
		c.Resources[0].GroupVersion = "resource.k8s.io/v1"
		c.addPod("b", "new")
		time.Sleep(time.Minute)
		c.want("v1", "team/new/d\nteam/old/d\n")
		if n := len(c.claims.Actions()); n != 3 {
			t.Errorf("requests for claims: got %d, want 3: %v", n, c.claims.Actions())
		}
	})
}

// TestNoClaimsAPI has an API server without the API.
func TestNoClaimsAPI(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newClaimsCluster(t, []string{"v1alpha3"})
		c.addPod("a", "x")
		c.want("v1alpha3", "")
		if c.log.Count("the API server has none of resource.k8s.io v1, v1beta2, v1beta1") != 1 {
			t.Errorf("log: got %s", c.log.String())
		}
	})
}
