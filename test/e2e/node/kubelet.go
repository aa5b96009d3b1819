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
	podsPort   = 10255 // the kubelet's read-only port: HTTP without authentication
)

// KubeletDir returns the machine's path of the node's /var/lib/kubelet.
func (n *RealNode) KubeletDir() string { return n.path("root") }

// DevicePluginSocket returns the machine's path of the kubelet's registration socket.
func (n *RealNode) DevicePluginSocket() string {
	return n.path("root", "device-plugins", "kubelet.sock")
}

// PodResourcesSocket returns the machine's path of the kubelet's pod-resources socket.
func (n *RealNode) PodResourcesSocket() string {
	return n.path("root", "pod-resources", "kubelet.sock")
}

// PodLogs returns the folder of the pods' logs, the same inside and outside the node.
func (n *RealNode) PodLogs() string { return filepath.Join(n.Logs, "pods") }

// Kubelet returns the kubelet's process; nil before the first start and after a stop.
func (n *RealNode) Kubelet() *Process { return n.kubelet }

// StartKubelet starts the kubelet with additional arguments, waits until all sockets answer, and returns the start time.
func (n *RealNode) StartKubelet(ctx context.Context, args ...string) (time.Time, error) {
	if n.kubelet != nil && n.kubelet.Alive() == nil {
		return time.Time{}, errors.New("kubelet is already running")
	}
	config, err := n.writeKubeletConfig()
	if err != nil {
		return time.Time{}, err
	}
	before, err := n.KubeletSocketTime() // sockets of an ended kubelet stay and reject connections
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

// StopKubelet stops the kubelet with SIGTERM or SIGKILL. Pods keep running, and the kubelet's sockets stay on disk.
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

// KubeletSocketTime returns the creation time of the registration socket, by the file system's clock.
// This clock lags time.Now by a few milliseconds. Inode numbers do not distinguish sockets, because a new socket often reuses
// the old number.
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

// kubeletConfig returns the configuration of a kubelet without API server, with static pods from a folder.
// https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
func (n *RealNode) kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"staticPodPath":            n.path("manifests"),
		"podLogsDir":               n.PodLogs(),
		"containerRuntimeEndpoint": "unix://" + n.runtimeSocket(),
		"resolvConf":               "", // no DNS for pods

		// Safe, because only the machine can reach the node's network.
		"address":            "0.0.0.0",
		"readOnlyPort":       podsPort,
		"healthzBindAddress": "0.0.0.0",
		"healthzPort":        healthPort,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false},
		},
		"authorization": map[string]any{"mode": "AlwaysAllow"},

		// Properties of the machine that must not prevent the start.
		"cgroupDriver":           "cgroupfs",
		"failCgroupV1":           false,
		"failSwapOn":             false,
		"enforceNodeAllocatable": []string{},

		// A full disk of the machine must not evict pods and images of tests.
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

// mergeMaps returns under with the keys of over: maps are merged, all other values replaced.
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
