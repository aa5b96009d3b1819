package node

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

// Ports of kubelet.yaml.
const (
	healthPort = 10248
	podsPort   = 10255 // HTTP without authentication
)

// KubeletDir returns the machine's path of the node's /var/lib/kubelet.
func (n *RealNode) KubeletDir() string { return n.Path("root") }

// DevicePluginSocket returns the machine's path of the kubelet's registration
// socket.
func (n *RealNode) DevicePluginSocket() string {
	return n.Path("root", "device-plugins", "kubelet.sock")
}

// PodResourcesSocket returns the machine's path of the kubelet's pod-resources
// socket.
func (n *RealNode) PodResourcesSocket() string {
	return n.Path("root", "pod-resources", "kubelet.sock")
}

// PodLogs returns the folder of the pods' logs, the same inside and outside the
// node.
func (n *RealNode) PodLogs() string { return filepath.Join(n.Logs, "pods") }

// Kubelet returns the kubelet's process; nil before the first start and after a
// stop.
func (n *RealNode) Kubelet() *Process { return n.kubelet }

// StartKubelet starts the kubelet with additional arguments, waits until all
// sockets respond, and returns the start time.
func (n *RealNode) StartKubelet(ctx context.Context, args ...string) (time.Time, error) {
	if n.kubelet != nil && n.kubelet.Alive() == nil {
		return time.Time{}, errors.New("kubelet is already running")
	}
	config, err := n.writeKubeletConfig()
	if err != nil {
		return time.Time{}, err
	}
	before, err := n.KubeletSocketTime() // the sockets of an ended kubelet still exist and reject connections
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, err
	}
	start := time.Now()
	argv := append([]string{n.binary, "--config=" + config, "--hostname-override=" + Name, "--node-ip=" + n.IP()},
		args...)
	n.kubelet, err = n.Start(ctx, "kubelet", argv, func(ctx context.Context) error {
		if now, err := n.KubeletSocketTime(); err != nil || now.Equal(before) {
			return errors.Join(errors.New("no new device-plugin socket"), err)
		}
		return errors.Join(dial(ctx, "unix", n.DevicePluginSocket()), dial(ctx, "unix", n.PodResourcesSocket()),
			GetJSON(ctx, n.URL(healthPort)+"/healthz", nil))
	})
	return start, err
}

// StopKubelet stops the kubelet with SIGTERM or SIGKILL. Pods keep running, and
// the kubelet's sockets still exist.
func (n *RealNode) StopKubelet(ctx context.Context, signal syscall.Signal) error {
	if n.kubelet == nil {
		return errors.New("kubelet is not running")
	}
	_, err := n.kubelet.Stop(ctx, signal)
	if err == nil {
		n.kubelet = nil
	}
	return err
}

// KubeletSocketTime returns the creation time of the registration socket, by
// the file system's clock. This clock lags time.Now by a few milliseconds.
// Inode numbers do not distinguish sockets, because a new socket often reuses
// the old number.
func (n *RealNode) KubeletSocketTime() (time.Time, error) {
	info, err := os.Lstat(n.DevicePluginSocket())
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix()), nil
}

//go:embed kubelet.yaml
var kubeletConfig string

func (n *RealNode) writeKubeletConfig() (path string, err error) {
	fill := strings.NewReplacer("@WORK@", n.work, "@LOGS@", n.PodLogs(), "@RUNTIME@", n.RuntimeSocket(),
		"@CGROUP_DRIVER@", n.cgroups.driver(), "@CGROUP_ROOT@", n.cgroups.root())
	var config map[string]any
	if err := yaml.Unmarshal([]byte(fill.Replace(kubeletConfig)), &config); err != nil {
		return "", fmt.Errorf("decode kubelet.yaml: %w", err)
	}
	b, err := yaml.Marshal(mergeMaps(config, n.options.KubeletConfig))
	if err != nil {
		return "", fmt.Errorf("encode the kubelet's configuration: %w", err)
	}
	path = n.Path("conf", "kubelet.yaml")
	return path, os.WriteFile(path, b, 0o644)
}

// mergeMaps returns base with the keys of override: maps are merged, all other
// values replaced.
func mergeMaps(base, override map[string]any) map[string]any {
	merged := maps.Clone(base)
	for key, value := range override {
		lower, lowerIsMap := merged[key].(map[string]any)
		upper, upperIsMap := value.(map[string]any)
		if lowerIsMap && upperIsMap {
			value = mergeMaps(lower, upper)
		}
		merged[key] = value
	}
	return merged
}
