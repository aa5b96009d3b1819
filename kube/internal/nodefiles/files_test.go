package nodefiles_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
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
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/api/resource/v1beta1"
	"k8s.io/api/resource/v1beta2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	draclient "k8s.io/dynamic-resource-allocation/client"
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
	_, err := c.CoreV1().Nodes().Update(c.t.Context(), newNode(labels), metav1.UpdateOptions{})
	require.NoError(c.t, err)
}

// start follows the label; the source and the file run until stop, or the file
// until its end.
func (c *cluster) start(f *nodefiles.File, objects *source.Source) (stop func()) {
	c.t.Helper()
	f.Path, f.Objects, f.Log = c.path, objects, c.log.Logger()
	stopSource := background.Run(c.t, objects.Run)
	stopFile := background.Run(c.t, f.Run)
	return func() { stopSource(); stopFile() }
}

func (c *cluster) startLabel() (stop func()) {
	c.t.Helper()
	f := &nodefiles.File{Content: nodefiles.Label("config", "standard"), Default: "standard\n"}
	return c.start(f, source.Node(c, "a", c.log.Logger()))
}

func newNode(labels map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: labels}}
}

// load loads the label once, as an init container does.
func (c *cluster) load() error {
	c.t.Helper()
	node := source.Node(c, "a", c.log.Logger())
	defer background.Run(c.t, node.Run)()
	f := &nodefiles.File{
		Path: c.path, Objects: node, Once: true, Log: c.log.Logger(),
		Content: nodefiles.Label("config", "standard"), Default: "standard\n",
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	return f.Run(ctx)
}

func TestLoadLabel(t *testing.T) {
	for name, test := range map[string]struct {
		node         *v1.Node
		before       string
		refused      error
		want, logHas string
	}{
		"label":                     {node: newNode(map[string]string{"config": "shared"}), want: "shared\n"},
		"no label":                  {node: newNode(map[string]string{"other": "x"}), before: "shared\n", want: "standard\n"},
		"empty label":               {node: newNode(map[string]string{"config": ""}), want: "standard\n"},
		"no node":                   {want: "standard\n", logHas: "no such node"},
		"no node, known before":     {before: "shared\n", want: "shared\n", logHas: "no such node"},
		"no API server":             {refused: errors.New("refused"), want: "standard\n", logHas: "refused"},
		"no API server, but before": {refused: errors.New("refused"), before: "shared\n", want: "shared\n", logHas: "refused"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			c := newCluster(t)
			if test.node != nil {
				require.NoError(t, c.Tracker().Add(test.node))
			}
			if test.before != "" {
				require.NoError(t, os.WriteFile(c.path, []byte(test.before), 0o600))
			}
			c.refuse(test.refused)
			require.NoError(t, c.load())
			c.want("file", test.want)
			if warned := c.log.Count("level=WARN") > 0; warned != (test.logHas != "") || !strings.Contains(c.log.String(), test.logHas) {
				t.Errorf("log: got %s, want %q", c.log.String(), test.logHas)
			}
		})
	}
}

// TestFollowLabel changes the label, also while the API server is away.
func TestFollowLabel(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, newNode(map[string]string{"config": "one"}))
		c.startLabel()
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
		if n := c.log.Count("level=WARN"); n != 2 || c.log.Count("no such node") != 1 || c.log.Count("following objects") != 1 {
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
		c.startLabel()
		time.Sleep(time.Hour)
		c.want("without a role", "two\n")
		if n := c.log.Count("\n"); n != 1 {
			t.Errorf("log: got %s", c.log.String())
		}
		c.outage(nil)
		c.want("with a role", "one\n")
	})
}

// TestMissingFolder fails at the start, and while it runs.
func TestMissingFolder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, newNode(map[string]string{"config": "one"}))
		dir := filepath.Dir(c.path)
		require.NoError(t, os.Remove(dir))
		if err := c.load(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("start: got %v", err)
		}
		require.NoError(t, os.Mkdir(dir, 0o700))
		c.startLabel()
		c.want("start", "one\n")
		require.NoError(t, os.RemoveAll(dir))
		c.setLabels(map[string]string{"config": "two"})
		time.Sleep(time.Hour)
		require.NoError(t, os.Mkdir(dir, 0o700))
		time.Sleep(time.Minute)
		c.want("after the repair", "two\n")
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

// newClaim returns a claim; without results, it has no allocation.
func newClaim(name string, results ...result) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	for _, r := range results {
		if claim.Status.Allocation == nil {
			claim.Status.Allocation = &resourceapi.AllocationResult{}
		}
		all := &claim.Status.Allocation.Devices.Results
		*all = append(*all, resourceapi.DeviceRequestAllocationResult{Driver: r.driver, Pool: "a", Device: "gpu-0"})
		if r.admin {
			(*all)[len(*all)-1].AdminAccess = new(true)
		}
	}
	return claim
}

// newClaimsCluster has a cluster that serves claims in one version.
func newClaimsCluster(t *testing.T, version string, claims ...*resourceapi.ResourceClaim) *cluster {
	t.Helper()
	c := newCluster(t)
	for _, claim := range claims {
		c.setClaim(version, claim)
	}
	admin := &nodefiles.AdminClaims{Client: draclient.New(c)}
	c.start(&nodefiles.File{Content: admin.Content}, source.Pods(c, "a", c.log.Logger()))
	return c
}

// setClaim creates or replaces a claim in a version.
func (c *cluster) setClaim(version string, claim *resourceapi.ResourceClaim) {
	c.t.Helper()
	data, err := json.Marshal(claim)
	require.NoError(c.t, err)
	object := map[string]runtime.Object{
		"v1": &resourceapi.ResourceClaim{}, "v1beta1": &v1beta1.ResourceClaim{}, "v1beta2": &v1beta2.ResourceClaim{},
	}[version]
	require.NoError(c.t, json.Unmarshal(data, object)) // the status has the same fields
	gvr := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	gvr.Version = version
	_ = c.Tracker().Delete(gvr, "team", claim.Name) // perhaps none
	require.NoError(c.t, c.Tracker().Create(gvr, object, "team"))
}

// addPod adds a pod with claims; those with a prefix "~" are of templates.
func (c *cluster) addPod(name string, claims ...string) *v1.Pod {
	c.t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}}
	for _, claim := range claims {
		if generated, ok := strings.CutPrefix(claim, "~"); ok {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: claim, ResourceClaimTemplateName: new("t")})
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses,
				v1.PodResourceClaimStatus{Name: claim, ResourceClaimName: new(generated)})
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
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} {
		bubble.Run(t, version, func(t *testing.T) {
			c := newClaimsCluster(t, version,
				newClaim("monitor", result{nvidia, true}, result{nvidia, true}), newClaim("train", result{nvidia, false}),
				newClaim("mixed", result{nvidia, true}, result{nvidia, false}, result{other, true}), newClaim("pending"))
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
			c.setClaim(version, newClaim("pending", result{nvidia, true}))
			time.Sleep(time.Minute)
			c.want("allocated later", all+"team/pending/gpu.nvidia.com\n")
			monitor.Status.Phase = v1.PodSucceeded
			_, err := c.CoreV1().Pods("team").Update(t.Context(), monitor, metav1.UpdateOptions{})
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
	}
}

// TestClaimsAreReadOnce counts requests, and upgrades the API server.
func TestClaimsAreReadOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newClaimsCluster(t, "v1beta1", newClaim("old", result{"d", true}))
		c.addPod("a", "old")
		c.want("v1beta1", "team/old/d\n")
		c.ClearActions()
		c.setClaim("v1", newClaim("new", result{"d", true}))
		c.addPod("b", "new")
		c.want("v1", "team/new/d\nteam/old/d\n")
		for _, action := range c.Actions() {
			if get, ok := action.(k8stesting.GetAction); ok && get.GetName() == "old" {
				t.Error("the claim was read again")
			}
		}
	})
}
