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

// StaticPod is the configuration of a static pod.
type StaticPod struct {
	Name string
	// Namespace is "default" if empty.
	Namespace string
	// InitContainers and Containers run the test image.
	InitContainers, Containers []StaticContainer
	// RestartPolicy is Always if empty, as in Kubernetes.
	RestartPolicy string
	// Grace is the time between SIGTERM and SIGKILL in whole seconds, by default one second.
	Grace time.Duration
	// HostNetwork puts the pod into the node's network namespace.
	HostNetwork bool
	// HostPID puts the containers into the node's pid namespace, ShareProcesses into a namespace of the pod. The default is a
	// namespace per container.
	HostPID, ShareProcesses bool
	Labels                  map[string]string
	// HostPaths are folders of the node, mounted into the regular containers at the same path.
	HostPaths []string
}

// StaticContainer is a container of a StaticPod.
type StaticContainer struct {
	Name string
	// Command is a program in a folder of HostPaths that replaces the test image's box.
	Command []string
	// Args are the arguments of box, by default "pause".
	Args []string
	// Limits are the requested resources: {"nvidia.com/gpu": 1}.
	Limits map[string]int
	// RestartPolicy "Always" makes an init container a sidecar.
	RestartPolicy string
	Env           map[string]string
}

// FullName returns the kubelet's name of the pod, with the node's name as suffix.
func (p StaticPod) FullName() string { return p.Name + "-" + Name }

func (p StaticPod) namespace() string { return firstNonEmpty(p.Namespace, "default") }

// manifest returns the pod's manifest with a new uid.
// Without a uid the kubelet derives the same uid from the same manifest, and takes a recreated pod for the earlier pod.
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

// volumes returns the volumes of the pod, named by index.
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

// CreatePod writes a pod's manifest for the kubelet and returns the pod's uid at once.
func (n *RealNode) CreatePod(p StaticPod) (uid string, err error) {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	uid = fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
	manifest, err := p.manifest(uid)
	if err != nil {
		return "", fmt.Errorf("encode pod %s: %w", p.Name, err)
	}
	// The kubelet ignores names that start with a dot, and reads the renamed file as a whole.
	file := n.manifestFile(p)
	hidden := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(hidden, manifest, 0o644); err != nil {
		return "", err
	}
	return uid, os.Rename(hidden, file)
}

// DeletePod removes a pod's manifest and returns at once. The kubelet removes the pod from all lists while the containers end.
func (n *RealNode) DeletePod(p StaticPod) error { return os.Remove(n.manifestFile(p)) }

func (n *RealNode) manifestFile(p StaticPod) string {
	return n.path("manifests", p.namespace()+"_"+p.Name+".json")
}

// RunPod creates a pod, waits until all containers have started or the pod has failed, and returns the status.
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
			return fmt.Errorf("pod status is %+v", status)
		}
		return nil
	})
	return status, err
}

// RemovePod deletes a pod and waits until all processes have ended.
func (n *RealNode) RemovePod(ctx context.Context, p StaticPod) error {
	status, err := n.Pod(ctx, p)
	if err != nil {
		return err
	}
	if err := n.DeletePod(p); err != nil {
		return err
	}
	return Until(ctx, fmt.Sprintf("pod %s has ended", p.Name), func(context.Context) error {
		dir, _ := n.cgroups.find("pod" + status.UID) // stays empty for a while
		for _, container := range subdirs(dir) {
			if pids := pidsIn(container); len(pids) > 0 {
				return fmt.Errorf("processes %v still run", pids)
			}
		}
		return nil
	})
}
