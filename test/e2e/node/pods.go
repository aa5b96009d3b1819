package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// StaticPod is a static pod to run.
type StaticPod struct {
	Name string
	// Namespace is "default" when empty.
	Namespace string
	// InitContainers and Containers run the test image.
	InitContainers, Containers []StaticContainer
	// RestartPolicy is Kubernetes' own default, Always, when empty.
	RestartPolicy string
	// Grace is the time between SIGTERM and SIGKILL, in whole seconds; one second when zero.
	Grace time.Duration
	// HostNetwork puts the pod into the node's network namespace instead of one of its own.
	HostNetwork bool
	// HostPID puts its containers into the node's pid namespace, and ShareProcesses into one of the pod; else each has its own.
	HostPID, ShareProcesses bool
	Labels                  map[string]string
	// HostPaths are folders of the node, which the regular containers have at the same place.
	HostPaths []string
}

// StaticContainer of a Pod.
type StaticContainer struct {
	Name string
	// Command is a program in one of the pod's Paths, in place of box, the test image's.
	Command []string
	// Args are for box; none means "pause".
	Args []string
	// Limits are the resources that it asks for: {"nvidia.com/gpu": 1}.
	Limits map[string]int
	// RestartPolicy "Always" makes an init container a sidecar.
	RestartPolicy string
	Env           map[string]string
}

// FullName is what the kubelet calls the pod: a static pod bears the node's name at its end.
func (p StaticPod) FullName() string { return p.Name + "-" + Name }

func (p StaticPod) namespace() string { return firstNonEmpty(p.Namespace, "default") }

// manifest is the pod as the kubelet reads it. The uid is new each time: the kubelet would derive the same one from the same manifest, and
// takes a pod that comes back under its old uid for one that has not ended yet.
func (p StaticPod) manifest(uid string) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata":   map[string]any{"name": p.Name, "namespace": p.namespace(), "uid": uid, "labels": p.Labels},
		"spec": map[string]any{
			"restartPolicy":                 firstNonEmpty(p.RestartPolicy, "Always"),
			"terminationGracePeriodSeconds": max(1, int(p.Grace.Seconds())),
			"hostNetwork":                   p.HostNetwork,
			"hostPID":                       p.HostPID,
			"shareProcessNamespace":         p.ShareProcesses,
			"initContainers":                containerManifests(p.InitContainers, nil),
			"containers":                    containerManifests(p.Containers, p.HostPaths),
			"volumes":                       volumes(p.HostPaths),
		},
	}, "", "  ")
}

// volumes are named by their order.
func volumes(paths []string) []any {
	all := []any{}
	for i, path := range paths {
		all = append(all, map[string]any{"name": fmt.Sprintf("path-%d", i), "hostPath": map[string]any{"path": path}})
	}
	return all
}

func containerManifests(containers []StaticContainer, paths []string) []any {
	all, mounts := []any{}, []any{}
	for i, path := range paths {
		mounts = append(mounts, map[string]any{"name": fmt.Sprintf("path-%d", i), "mountPath": path})
	}
	for _, c := range containers {
		env := []any{}
		for name, value := range c.Env {
			env = append(env, map[string]any{"name": name, "value": value})
		}
		m := map[string]any{
			"name": c.Name, "image": TestImage, "imagePullPolicy": "Never", "command": c.Command, "args": c.Args, "env": env,
			"resources": map[string]any{"limits": c.Limits}, "volumeMounts": mounts,
		}
		if c.RestartPolicy != "" {
			m["restartPolicy"] = c.RestartPolicy
		}
		all = append(all, m)
	}
	return all
}

// CreatePod hands the kubelet a pod and returns the pod's uid at once.
func (n *RealNode) CreatePod(p StaticPod) (uid string, err error) {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	uid = fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
	manifest, err := p.manifest(uid)
	if err != nil {
		return "", fmt.Errorf("encode pod %s: %w", p.Name, err)
	}
	// The kubelet reads a file as soon as it appears, but none whose name begins with a dot: it never sees half a manifest.
	file := n.manifestFile(p)
	hidden := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(hidden, manifest, 0o644); err != nil {
		return "", err
	}
	return uid, os.Rename(hidden, file)
}

// DeletePod takes a pod's manifest away and returns at once: the kubelet drops the pod from every list, and ends its containers meanwhile.
func (n *RealNode) DeletePod(p StaticPod) error { return os.Remove(n.manifestFile(p)) }

func (n *RealNode) manifestFile(p StaticPod) string {
	return n.path("manifests", p.namespace()+"_"+p.Name+".json")
}

// RunPod hands the kubelet a pod and returns when each of its containers has been started, or the pod has failed: which one, the status says.
func (n *RealNode) RunPod(ctx context.Context, p StaticPod) (StaticPodStatus, error) {
	uid, err := n.CreatePod(p)
	if err != nil {
		return StaticPodStatus{}, err
	}
	var status StaticPodStatus
	err = Until(ctx, fmt.Sprintf("pod %s runs", p.Name), func(ctx context.Context) (err error) {
		if status, err = n.Pod(ctx, p); err != nil {
			return err
		}
		if status.UID != uid || !status.hasStarted(p) {
			return fmt.Errorf("its status is %+v", status)
		}
		return nil
	})
	return status, err
}

// RemovePod deletes a pod and returns when none of its processes is left.
func (n *RealNode) RemovePod(ctx context.Context, p StaticPod) error {
	status, err := n.Pod(ctx, p)
	if err != nil {
		return err
	}
	if err := n.DeletePod(p); err != nil {
		return err
	}
	return Until(ctx, fmt.Sprintf("pod %s has ended", p.Name), func(context.Context) error {
		dir, _ := n.cgroups.find("pod" + status.UID) // it stays for a while, empty
		for _, container := range subdirs(dir) {
			if pids := pidsIn(container); len(pids) > 0 {
				return fmt.Errorf("processes %v still run", pids)
			}
		}
		return nil
	})
}
