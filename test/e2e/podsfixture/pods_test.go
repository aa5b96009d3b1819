package podsfixture

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// startedAt is the start of all pods; afterStart returns a later time.
var startedAt = time.Date(2026, 9, 1, 8, 0, 0, 0, time.UTC)

func afterStart(seconds int) metav1.Time {
	return metav1.NewTime(startedAt.Add(time.Duration(seconds) * time.Second))
}

// fixturePods returns pods by name, as sent by a kubelet 1.37.
func fixturePods() map[string]*v1.Pod {
	return map[string]*v1.Pod{
		"training": trainingPod(), "crashloop": crashloopPod(), "oomkilled": oomKilledPod(), "evicted": evictedPod(),
		"static": staticPod(), "completed": completedPod(), "terminating": terminatingPod(), "deleted": deletedPod(),
		"rejected": rejectedPod(), "debugged": debuggedPod(), "starting": startingPod(), "signalled": signalledPod(),
	}
}

// newPod returns a pod with the fields that the API server and the kubelet set.
func newPod(namespace, name string, number int, containers ...string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: types.UID(fmt.Sprintf("7c0ffee5-0000-4000-8000-%012d", number)),
			GenerateName: name[:3] + "-", ResourceVersion: "123456", Generation: 1, CreationTimestamp: afterStart(0),
			Labels: map[string]string{
				"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "über-model", "pod-template-hash": "6d4cf56db6",
				"team": namespace, "empty": "",
			},
			Annotations: map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-09-01T00:00:00Z", "note": "containerd://not-an-id"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "0ffee500-0000-4000-8000-000000000000", Controller: new(true),
			}},
			Finalizers: []string{"example.com/finalizer"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubelet", Operation: "Update", APIVersion: "v1", Time: new(afterStart(1)), FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{}}}`), Subresource: "status",
			}},
		},
		Spec: newPodSpec(containers...),
	}
	p.Status = v1.PodStatus{
		ObservedGeneration: 1, Phase: v1.PodRunning, HostIP: "10.0.0.1", HostIPs: []v1.HostIP{{IP: "10.0.0.1"}},
		PodIP: "10.1.0.7", PodIPs: []v1.PodIP{{IP: "10.1.0.7"}, {IP: "fd00::7"}}, StartTime: new(afterStart(1)), QOSClass: v1.PodQOSBurstable,
		Conditions: []v1.PodCondition{
			{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue, LastTransitionTime: afterStart(3), ObservedGeneration: 1},
			{Type: v1.PodInitialized, Status: v1.ConditionTrue, LastTransitionTime: afterStart(5), ObservedGeneration: 1},
			{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "ContainersNotReady", Message: "containers with unready status: [main]", LastTransitionTime: afterStart(1)},
			{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: afterStart(0)},
		},
	}
	return p
}

func newPodSpec(containers ...string) v1.PodSpec {
	s := v1.PodSpec{
		NodeName: "node-a", ServiceAccountName: "default", RestartPolicy: v1.RestartPolicyAlways, DNSPolicy: v1.DNSClusterFirst,
		SchedulerName: "default-scheduler", TerminationGracePeriodSeconds: new(int64(30)), Priority: new(int32(0)), EnableServiceLinks: new(true),
		Tolerations:     []v1.Toleration{{Key: "nvidia.com/gpu", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}},
		SecurityContext: &v1.PodSecurityContext{},
		Volumes: []v1.Volume{
			{Name: "dshm", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
			{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{
				ServiceAccountToken: &v1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"},
			}}}}},
		},
	}
	for _, name := range containers {
		s.Containers = append(s.Containers, newContainer(name))
	}
	return s
}

func newContainer(name string) v1.Container {
	gpus := v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("64Gi")}
	return v1.Container{
		Name: name, Image: "registry.example.com/team/" + name + ":v1", Command: []string{"/bin/" + name},
		Args:            []string{"--epochs=90", "--data=/data"},
		Env:             []v1.EnvVar{{Name: "NCCL_DEBUG", Value: "INFO"}, {Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
		Resources:       v1.ResourceRequirements{Limits: gpus, Requests: gpus},
		VolumeMounts:    []v1.VolumeMount{{Name: "dshm", MountPath: "/dev/shm"}, {Name: "token", MountPath: "/var/run/secrets", ReadOnly: true}},
		LivenessProbe:   &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}, PeriodSeconds: 10},
		ImagePullPolicy: v1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log",
	}
}

// newContainerStatus returns the status of a container after a number of restarts.
func newContainerStatus(name string, restarts int32, state v1.ContainerState) v1.ContainerStatus {
	return v1.ContainerStatus{
		Name: name, State: state, RestartCount: restarts, Ready: state.Running != nil, Started: new(state.Running != nil),
		Image: "registry.example.com/team/" + name + ":v1", ImageID: "registry.example.com/team/" + name + "@sha256:" + containerID(name, 99)[:64],
		ContainerID:              "containerd://" + containerID(name, restarts),
		AllocatedResources:       v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")},
		Resources:                &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}},
		VolumeMounts:             []v1.VolumeMountStatus{{Name: "dshm", MountPath: "/dev/shm"}},
		User:                     &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 1000, GID: 1000, SupplementalGroups: []int64{1000}}},
		AllocatedResourcesStatus: []v1.ResourceStatus{{Name: "nvidia.com/gpu", Resources: []v1.ResourceHealth{{ResourceID: "GPU-1", Health: v1.ResourceHealthStatusHealthy}}}},
	}
}

// containerID returns 64 hexadecimal digits, unique for a name and start.
func containerID(name string, start int32) string {
	return fmt.Sprintf("%064x", fmt.Sprintf("%s/%d", name, start))
}

func waitingState(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: "back-off 5m0s restarting failed container"}}
}

func runningState(since int) v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: afterStart(since)}}
}

func terminatedState(reason string, exit int32, from, to int) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: reason, ExitCode: exit, Message: "Traceback (most recent call last)", StartedAt: afterStart(from), FinishedAt: afterStart(to),
		ContainerID: "containerd://" + containerID("before", 0),
	}}
}
