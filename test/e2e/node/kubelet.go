package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	healthPort = 10248
	podsPort   = 10255 // the kubelet's read-only port: plain HTTP, no identity asked for
)

// KubeletDir is where the machine finds what is /var/lib/kubelet inside.
func (n *RealNode) KubeletDir() string { return n.path("root") }

// DevicePluginSocket is where the machine finds the kubelet's registration socket.
func (n *RealNode) DevicePluginSocket() string {
	return n.path("root", "device-plugins", "kubelet.sock")
}

// PodResourcesSocket is where the machine finds the kubelet's PodResources socket.
func (n *RealNode) PodResourcesSocket() string {
	return n.path("root", "pod-resources", "kubelet.sock")
}

// PodLogs is where the kubelet has the pods' logs, inside and outside.
func (n *RealNode) PodLogs() string { return filepath.Join(n.Logs, "pods") }

// Kubelet is the kubelet's process; nil before the first start and after a stop.
func (n *RealNode) Kubelet() *Process { return n.kubelet }

// StartKubelet starts the kubelet, with these arguments beside its own, and returns when it answers on every socket, with the time of its start.
func (n *RealNode) StartKubelet(ctx context.Context, args ...string) (time.Time, error) {
	if n.kubelet != nil && n.kubelet.Alive() == nil {
		return time.Time{}, errors.New("the kubelet runs already")
	}
	config, err := n.writeKubeletConfig()
	if err != nil {
		return time.Time{}, err
	}
	before, err := n.KubeletSocketTime() // the sockets of a kubelet that has ended stay, and refuse
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, err
	}
	start := time.Now()
	n.kubelet, err = n.Exec("kubelet", append([]string{n.binary, "--config=" + config, "--hostname-override=" + Name, "--node-ip=" + n.IP()}, args...))
	if err != nil {
		return time.Time{}, err
	}
	return start, Until(ctx, "the kubelet answers", func(ctx context.Context) error {
		if err := n.kubelet.Alive(); err != nil {
			return StopRetrying(err)
		}
		if now, err := n.KubeletSocketTime(); err != nil || now.Equal(before) {
			return errors.Join(errors.New("no new device-plugin socket"), err)
		}
		return errors.Join(dial(ctx, "unix", n.DevicePluginSocket()), dial(ctx, "unix", n.PodResourcesSocket()),
			getJSON(ctx, fmt.Sprintf("%s/healthz", n.URL(healthPort)), nil))
	})
}

// StopKubelet ends the kubelet, with SIGTERM or SIGKILL. Pods keep running, and the kubelet's sockets stay on disk.
func (n *RealNode) StopKubelet(ctx context.Context, signal syscall.Signal) error {
	if n.kubelet == nil {
		return errors.New("the kubelet does not run")
	}
	_, err := n.kubelet.Stop(ctx, signal)
	if err == nil {
		n.kubelet = nil
	}
	return err
}

// KubeletSocketTime is when the registration socket was made, in the file system's clock: that lags time.Now by a tick of the kernel, some
// milliseconds. The inode number would not do to tell sockets apart: the new one often gets the old one's.
func (n *RealNode) KubeletSocketTime() (time.Time, error) {
	info, err := os.Lstat(n.DevicePluginSocket())
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix()), nil
}

func (n *RealNode) writeKubeletConfig() (path string, err error) {
	b, err := json.MarshalIndent(mergeMaps(n.kubeletConfig(), n.options.KubeletConfig), "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the kubelet's configuration: %w", err)
	}
	path = n.path("conf", "kubelet.json")
	return path, os.WriteFile(path, b, 0o644)
}

// kubeletConfig is a kubelet without API server: its pods are the manifests in a folder.
// https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
func (n *RealNode) kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"staticPodPath":            n.path("manifests"),
		"podLogsDir":               n.PodLogs(),
		"containerRuntimeEndpoint": "unix://" + n.runtimeSocket(),
		"resolvConf":               "", // pods resolve nothing

		// Only the machine can reach the node's network.
		"address":            "0.0.0.0",
		"readOnlyPort":       podsPort,
		"healthzBindAddress": "0.0.0.0",
		"healthzPort":        healthPort,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false},
		},
		"authorization": map[string]any{"mode": "AlwaysAllow"},

		// The machine is what it is: these would be reasons not to start.
		"cgroupDriver":           "cgroupfs",
		"failCgroupV1":           false,
		"failSwapOn":             false,
		"enforceNodeAllocatable": []string{},

		// A full disk of the machine's is no reason to evict a test's pod or its image.
		"evictionHard": map[string]any{
			"imagefs.available": "0%", "imagefs.inodesFree": "0%", "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
		},
		"imageGCHighThresholdPercent":   100,
		"imageGCLowThresholdPercent":    99,
		"localStorageCapacityIsolation": false,
		"makeIPTablesUtilChains":        false,
		"enableControllerAttachDetach":  false,
		"volumePluginDir":               n.path("volume-plugins"),
		"syncFrequency":                 "5s",
		"logging":                       map[string]any{"verbosity": 4},
	}
}

// mergeMaps returns under with over laid on it: maps are merged, everything else is replaced.
func mergeMaps(under, over map[string]any) map[string]any {
	merged := maps.Clone(under)
	for key, value := range over {
		lower, below := merged[key].(map[string]any)
		upper, above := value.(map[string]any)
		if below && above {
			value = mergeMaps(lower, upper)
		}
		merged[key] = value
	}
	return merged
}
