package main

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// training runs, after an init container and beside a sidecar.
func training() *v1.Pod {
	p := pod("team-a", "training-0", 1, "main", "exporter")
	side := container("proxy")
	side.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = []v1.Container{container("download"), side}
	p.Status.InitContainerStatuses = []v1.ContainerStatus{
		status("download", 0, terminated("Completed", 0, 2, 5)), status("proxy", 1, running(6)),
	}
	p.Status.InitContainerStatuses[1].LastTerminationState = terminated("Error", 255, 5, 6)
	p.Status.ContainerStatuses = []v1.ContainerStatus{status("main", 0, running(7)), status("exporter", 0, running(8))}
	return p
}

// crashloop waits for its eighth start.
func crashloop() *v1.Pod {
	p := pod("team-b", "crashloop-x7k2p", 2, "main")
	s := status("main", 7, waiting("CrashLoopBackOff"))
	s.LastTerminationState = terminated("Error", 1, 600, 601)
	p.Status.ContainerStatuses = []v1.ContainerStatus{s}
	return p
}

// oomkilled is over, and will not be started again.
func oomkilled() *v1.Pod {
	p := pod("team-b", "oomkilled", 3, "main")
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	p.Status.Phase = v1.PodFailed
	p.Status.ContainerStatuses = []v1.ContainerStatus{status("main", 0, terminated("OOMKilled", 137, 2, 90))}
	return p
}

// evicted has failed, and its container still runs.
func evicted() *v1.Pod {
	p := pod("team-c", "evicted-1", 4, "main")
	p.Status.Phase, p.Status.Reason = v1.PodFailed, "Evicted"
	p.Status.Message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi."
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "TerminationByKubelet", Message: p.Status.Message, LastTransitionTime: later(70),
	})
	p.Status.ContainerStatuses = []v1.ContainerStatus{status("main", 0, running(2))}
	return p
}

// static comes from a manifest: its uid is the hash of that.
func static() *v1.Pod {
	p := pod("kube-system", "dcgm-node-a", 5, "main")
	p.UID, p.GenerateName, p.OwnerReferences, p.ManagedFields = "d41d8cd98f00b204e9800998ecf8427e", "", nil, nil
	p.CreationTimestamp = metav1.Time{}
	p.Annotations = map[string]string{
		"kubernetes.io/config.hash": string(p.UID), "kubernetes.io/config.source": "file", "kubernetes.io/config.seen": "2026-09-01T08:00:00Z",
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{status("main", 3, running(40))}
	p.Status.ContainerStatuses[0].LastTerminationState = terminated("Unknown", 255, 2, 30)
	return p
}

// completed is of a Job.
func completed() *v1.Pod {
	p := pod("batch", "job-7-abcde", 6, "main", "log")
	p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	p.Status.Phase = v1.PodSucceeded
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		status("main", 2, terminated("Completed", 0, 40, 90)), status("log", 0, terminated("Completed", 0, 2, 91)),
	}
	return p
}

// terminating is being deleted.
func terminating() *v1.Pod {
	p := pod("team-a", "web-0", 7, "main")
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(later(100)), new(int64(30))
	p.Status.ContainerStatuses = []v1.ContainerStatus{status("main", 0, running(2))}
	return p
}

// deleted has what a DELETED event has.
func deleted() *v1.Pod {
	p := pod("team-a", "web-0", 7)
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
}

// rejected has failed at its admission.
func rejected() *v1.Pod {
	p := pod("team-c", "rejected-9", 8, "main")
	p.Status = v1.PodStatus{
		Phase: v1.PodFailed, Reason: "UnexpectedAdmissionError", QOSClass: v1.PodQOSBurstable, StartTime: new(later(1)),
		Message: "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected",
	}
	return p
}

// debugged runs with an ephemeral container.
func debugged() *v1.Pod {
	p := pod("team-a", "notebook", 9, "main")
	p.Status.ContainerStatuses = []v1.ContainerStatus{status("main", 0, running(2))}
	p.Status.EphemeralContainerStatuses = []v1.ContainerStatus{status("debugger-1", 0, running(60))}
	p.Status.ContainerStatuses[0].ContainerID = "cri-o://" + id("main", 0)
	return p
}

// starting has no container yet.
func starting() *v1.Pod {
	p := pod("team-a", "starting", 10, "main")
	p.Labels = nil
	p.Status.Phase = v1.PodPending
	s := status("main", 0, waiting("ContainerCreating"))
	s.ContainerID, s.ImageID = "", ""
	p.Status.ContainerStatuses = []v1.ContainerStatus{s}
	return p
}

// signalled was killed, and its runtime said by what. Its exit code is negative, as
// a runtime may have it.
func signalled() *v1.Pod {
	p := pod("team-a", "signalled", 11, "main", "other")
	p.Status.Phase = v1.PodFailed
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		status("main", 0, terminated("Error", -1, 2, 9)), status("other", 0, terminated("ContainerStatusUnknown", 137, 2, 9)),
	}
	p.Status.ContainerStatuses[0].State.Terminated.Signal = 9
	p.Status.ContainerStatuses[1].State.Terminated.FinishedAt = metav1.Time{}
	return p
}
