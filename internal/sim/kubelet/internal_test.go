package kubelet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// FuzzRegister sends requests of plugins that do not listen. The response is the kubelet's text for the first violated rule.
func FuzzRegister(f *testing.F) {
	for _, seed := range [][3]string{
		{"v1beta1", "gpu.sock", "nvidia.com/gpu"},
		{"v1beta1", "", "nvidia.com/mig-1g.5gb.me"},
		{"v1beta1", "../../etc/passwd", "example.com/a"},
		{"v1beta1", strings.Repeat("x", 200), "example.com/a"},
		{"v1beta2", "gpu.sock", "nvidia.com/gpu"},
		{"v1beta1", "gpu.sock", "requests.nvidia.com/gpu"},
		{"v1beta1", "gpu.sock", "kubernetes.io/gpu"},
		{"v1beta1", "a\x00b", "\xff/\xff"},
		{"v1beta1", "%zz", "a.b/c\n"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	k := New(Options{Dir: f.TempDir()})
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the dial ends at once
	kp := &kubeletProcess{nodeState: &k.node, deviceManager: newDeviceManager(V137, time.Now), tasks: &errgroup.Group{}, ctx: ctx}
	f.Fuzz(func(t *testing.T, version, endpoint, resource string) {
		_, err := kp.Register(ctx, &pluginapi.RegisterRequest{Version: version, Endpoint: endpoint, ResourceName: resource})
		want := "failed to dial device plugin: "
		if version != "v1beta1" {
			want = fmt.Sprintf("requested API version %q is not supported by kubelet. Supported version is [\"v1beta1\"]", version)
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error: got %v, want %s", err, want)
		}
		if len(kp.endpoints) != 0 || len(kp.clients) != 0 {
			t.Errorf("got endpoints %v and clients %v, want none", kp.endpoints, kp.clients)
		}
		for _, c := range kp.conns {
			_ = c.conn.Close()
		}
		kp.conns = nil
	})
}
