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

// FuzzRegister sends requests of plugins that do not listen: the response is the kubelet's text for the first violated rule.
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
	cancel() // the dial is over at once
	kp := &kubeletProcess{nodeState: &k.node, deviceManager: newDeviceManager(V137, time.Now), tasks: &errgroup.Group{}, ctx: ctx}
	f.Fuzz(func(t *testing.T, version, endpoint, resource string) {
		_, err := kp.Register(ctx, &pluginapi.RegisterRequest{Version: version, Endpoint: endpoint, ResourceName: resource})
		want := "failed to dial device plugin: "
		switch {
		case version != "v1beta1":
			want = fmt.Sprintf("requested API version %q is not supported by kubelet. Supported version is [\"v1beta1\"]", version)
		case !isExtendedReference(resource):
			want = fmt.Sprintf("the ResourceName %q is invalid", resource)
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v; want %s", err, want)
		}
		if len(kp.endpoints) != 0 || len(kp.clients) != 0 {
			t.Errorf("endpoints %v, clients %v; want none", kp.endpoints, kp.clients)
		}
		for _, c := range kp.conns {
			_ = c.conn.Close()
		}
		kp.conns = nil
	})
}

// isExtendedReference is a reference for isExtendedResource without regular expressions.
func isExtendedReference(name string) bool {
	parts := strings.Split(name, "/")
	if len(parts) != 2 || strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "requests.") {
		return false
	}
	domain, last := parts[0], parts[1]
	const lower, upper = "abcdefghijklmnopqrstuvwxyz0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if len(domain) > 253-len("requests.") || len(last) > 63 {
		return false
	}
	for label := range strings.SplitSeq(domain, ".") {
		if !consistsOf(label, lower, "-") {
			return false
		}
	}
	return consistsOf(last, lower+upper, "-_.")
}

// consistsOf reports whether a word begins and ends with letters and has letters and others between.
func consistsOf(word, letters, others string) bool {
	return word != "" && strings.Trim(word, letters+others) == "" &&
		strings.ContainsAny(word[:1], letters) && strings.ContainsAny(word[len(word)-1:], letters)
}
