package podsfixture

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trainingPod runs with a sidecar after an init container.
func trainingPod() *v1.Pod {
	p := newPod("team-a", "training-0", 1, "main", "exporter")
	sidecar := newContainer("proxy")
	sidecar.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = []v1.Container{newContainer("download"), sidecar}
	p.Status.InitContainerStatuses = []v1.ContainerStatus{
		newContainerStatus("download", 0, terminatedState("Completed", 0, 2, 5)), newContainerStatus("proxy", 1, runningState(6)),
	}
	p.Status.InitContainerStatuses[1].LastTerminationState = terminatedState("Error", 255, 5, 6)
	p.Status.ContainerStatuses = []v1.ContainerStatus{newContainerStatus("main", 0, runningState(7)), newContainerStatus("exporter", 0, runningState(8))}
	return p
}

// crashloopPod waits for its eighth start.
func crashloopPod() *v1.Pod {
	p := newPod("team-b", "crashloop-x7k2p", 2, "main")
	s := newContainerStatus("main", 7, waitingState("CrashLoopBackOff"))
	s.LastTerminationState = terminatedState("Error", 1, 600, 601)
	p.Status.ContainerStatuses = []v1.ContainerStatus{s}
	return p
}

// oomKilledPod has failed and does not restart.
func oomKilledPod() *v1.Pod {
	p := newPod("team-b", "oomkilled", 3, "main")
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	p.Status.Phase = v1.PodFailed
	p.Status.ContainerStatuses = []v1.ContainerStatus{newContainerStatus("main", 0, terminatedState("OOMKilled", 137, 2, 90))}
	return p
}

// evictedPod has failed with a running container.
func evictedPod() *v1.Pod {
	p := newPod("team-c", "evicted-1", 4, "main")
	p.Status.Phase, p.Status.Reason = v1.PodFailed, "Evicted"
	p.Status.Message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi."
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "TerminationByKubelet", Message: p.Status.Message, LastTransitionTime: afterStart(70),
	})
	p.Status.ContainerStatuses = []v1.ContainerStatus{newContainerStatus("main", 0, runningState(2))}
	return p
}

// staticPod is from a manifest; its UID is the hash of the manifest.
func staticPod() *v1.Pod {
	p := newPod("kube-system", "dcgm-node-a", 5, "main")
	p.UID, p.GenerateName, p.OwnerReferences, p.ManagedFields = "d41d8cd98f00b204e9800998ecf8427e", "", nil, nil
	p.CreationTimestamp = metav1.Time{}
	p.Annotations = map[string]string{
		"kubernetes.io/config.hash": string(p.UID), "kubernetes.io/config.source": "file", "kubernetes.io/config.seen": "2026-09-01T08:00:00Z",
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{newContainerStatus("main", 3, runningState(40))}
	p.Status.ContainerStatuses[0].LastTerminationState = terminatedState("Unknown", 255, 2, 30)
	return p
}

// completedPod is a completed pod of a Job.
func completedPod() *v1.Pod {
	p := newPod("batch", "job-7-abcde", 6, "main", "log")
	p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	p.Status.Phase = v1.PodSucceeded
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		newContainerStatus("main", 2, terminatedState("Completed", 0, 40, 90)), newContainerStatus("log", 0, terminatedState("Completed", 0, 2, 91)),
	}
	return p
}

// terminatingPod is being deleted.
func terminatingPod() *v1.Pod {
	p := newPod("team-a", "web-0", 7, "main")
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(afterStart(100)), new(int64(30))
	p.Status.ContainerStatuses = []v1.ContainerStatus{newContainerStatus("main", 0, runningState(2))}
	return p
}

// deletedPod is the pod of a DELETED event.
func deletedPod() *v1.Pod {
	p := newPod("team-a", "web-0", 7)
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
}

// rejectedPod has failed at admission.
func rejectedPod() *v1.Pod {
	p := newPod("team-c", "rejected-9", 8, "main")
	p.Status = v1.PodStatus{
		Phase: v1.PodFailed, Reason: "UnexpectedAdmissionError", QOSClass: v1.PodQOSBurstable, StartTime: new(afterStart(1)),
		Message: "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected",
	}
	return p
}

// debuggedPod runs with an ephemeral container.
func debuggedPod() *v1.Pod {
	p := newPod("team-a", "notebook", 9, "main")
	p.Status.ContainerStatuses = []v1.ContainerStatus{newContainerStatus("main", 0, runningState(2))}
	p.Status.EphemeralContainerStatuses = []v1.ContainerStatus{newContainerStatus("debugger-1", 0, runningState(60))}
	p.Status.ContainerStatuses[0].ContainerID = "cri-o://" + containerID("main", 0)
	return p
}

// startingPod has no container yet.
func startingPod() *v1.Pod {
	p := newPod("team-a", "starting", 10, "main")
	p.Labels = nil
	p.Status.Phase = v1.PodPending
	s := newContainerStatus("main", 0, waitingState("ContainerCreating"))
	s.ContainerID, s.ImageID = "", ""
	p.Status.ContainerStatuses = []v1.ContainerStatus{s}
	return p
}

// signalledPod was killed by a signal. The exit code is negative, as some runtimes report.
func signalledPod() *v1.Pod {
	p := newPod("team-a", "signalled", 11, "main", "other")
	p.Status.Phase = v1.PodFailed
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		newContainerStatus("main", 0, terminatedState("Error", -1, 2, 9)), newContainerStatus("other", 0, terminatedState("ContainerStatusUnknown", 137, 2, 9)),
	}
	p.Status.ContainerStatuses[0].State.Terminated.Signal = 9
	p.Status.ContainerStatuses[1].State.Terminated.FinishedAt = metav1.Time{}
	return p
}
