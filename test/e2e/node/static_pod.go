package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
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
	// Grace is the time between SIGTERM and SIGKILL in whole seconds, by
	// default one second.
	Grace time.Duration
	// HostNetwork puts the pod into the node's network namespace.
	HostNetwork bool
	// HostPID puts the containers into the node's pid namespace, ShareProcesses
	// into a namespace of the pod. The default is a namespace per container.
	HostPID, ShareProcesses bool
	Labels                  map[string]string
	// HostPaths are folders of the node, mounted into the regular containers at
	// the same path.
	HostPaths []string
}

// StaticContainer is a container of a StaticPod.
type StaticContainer struct {
	Name string
	// Command is a program in a folder of HostPaths that replaces testcmd, the
	// program of the test image.
	Command []string
	// Args are the arguments of testcmd, by default "pause".
	Args []string
	// Limits are the requested resources: {"nvidia.com/gpu": 1}.
	Limits map[string]int
	// RestartPolicy "Always" makes an init container a sidecar.
	RestartPolicy string
	Env           map[string]string
}

// FullName returns the kubelet's name of the pod, with the node's name as
// suffix.
func (p StaticPod) FullName() string { return p.Name + "-" + Name }

func (p StaticPod) namespace() string { return cmp.Or(p.Namespace, "default") }

// manifest returns the pod's manifest with a new uid. Without a uid the kubelet
// derives the same uid from the same manifest, and does not distinguish a
// recreated pod from the earlier pod.
func (p StaticPod) manifest(uid string) ([]byte, error) {
	pod := v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.namespace(), UID: types.UID(uid), Labels: p.Labels},
		Spec: v1.PodSpec{
			RestartPolicy:                 v1.RestartPolicy(p.RestartPolicy),
			TerminationGracePeriodSeconds: new(max(1, int64(p.Grace.Seconds()))),
			HostNetwork:                   p.HostNetwork,
			HostPID:                       p.HostPID,
			ShareProcessNamespace:         &p.ShareProcesses,
		},
	}
	var mounts []v1.VolumeMount
	for i, path := range p.HostPaths {
		name := fmt.Sprintf("path-%d", i)
		mounts = append(mounts, v1.VolumeMount{Name: name, MountPath: path})
		source := v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
	for _, c := range p.InitContainers {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c.manifest(nil))
	}
	for _, c := range p.Containers {
		pod.Spec.Containers = append(pod.Spec.Containers, c.manifest(mounts))
	}
	return json.MarshalIndent(pod, "", "  ")
}

func (c StaticContainer) manifest(mounts []v1.VolumeMount) v1.Container {
	m := v1.Container{
		Name:            c.Name,
		Image:           TestImage,
		ImagePullPolicy: v1.PullNever,
		Command:         c.Command,
		Args:            c.Args,
		VolumeMounts:    mounts,
		Resources:       v1.ResourceRequirements{Limits: v1.ResourceList{}},
	}
	for name, value := range c.Env {
		m.Env = append(m.Env, v1.EnvVar{Name: name, Value: value})
	}
	for name, count := range c.Limits {
		m.Resources.Limits[v1.ResourceName(name)] = *resource.NewQuantity(int64(count), resource.DecimalSI)
	}
	if c.RestartPolicy != "" {
		m.RestartPolicy = new(v1.ContainerRestartPolicy(c.RestartPolicy))
	}
	return m
}

// CreatePod writes a pod's manifest for the kubelet and returns the pod's uid
// at once.
func (n *RealNode) CreatePod(p StaticPod) (uid string, err error) {
	uid = string(uuid.NewUUID())
	manifest, err := p.manifest(uid)
	if err != nil {
		return "", fmt.Errorf("encode pod %s: %w", p.Name, err)
	}
	// The kubelet ignores names that start with a dot, and reads the renamed
	// file as a whole.
	file := n.manifestFile(p)
	hidden := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(hidden, manifest, 0o644); err != nil {
		return "", err
	}
	return uid, os.Rename(hidden, file)
}

// DeletePod removes a pod's manifest and returns at once. The kubelet removes
// the pod from all lists while the containers end.
func (n *RealNode) DeletePod(p StaticPod) error { return os.Remove(n.manifestFile(p)) }

func (n *RealNode) manifestFile(p StaticPod) string {
	return n.Path("manifests", p.namespace()+"_"+p.Name+".json")
}
