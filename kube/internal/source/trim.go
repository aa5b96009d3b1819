package source

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxAnnotationBytes is above the ids and names that podgauge reads, and below
// the documents that other programs store in annotations.
const maxAnnotationBytes = 256

// trim is a cache.TransformFunc: it removes what podgauge does not read. A pod
// takes 1 KiB instead of about 10.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *v1.Pod:
		trimPod(o)
	case *v1.Node:
		*o = v1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, ResourceVersion: o.ResourceVersion, Labels: o.Labels}}
	}
	return o, nil
}

// trimPod makes the static pod of a mirror pod, as the kubelet has it: with the
// UID of cgroups and log folders, and without the time of creation, which is the
// mirror pod's.
func trimPod(p *v1.Pod) {
	if uid := p.Annotations[v1.MirrorPodAnnotationKey]; uid != "" {
		p.UID, p.CreationTimestamp = types.UID(uid), metav1.Time{}
	}
	maps.DeleteFunc(p.Annotations, func(name, value string) bool {
		return name == v1.MirrorPodAnnotationKey || len(value) > maxAnnotationBytes
	})
	p.ManagedFields, p.Finalizers = nil, nil
	p.Spec = v1.PodSpec{NodeName: p.Spec.NodeName, ResourceClaims: p.Spec.ResourceClaims}
	s := p.Status
	p.Status = v1.PodStatus{
		Phase: s.Phase, Reason: s.Reason, ResourceClaimStatuses: s.ResourceClaimStatuses,
		ContainerStatuses: s.ContainerStatuses, InitContainerStatuses: s.InitContainerStatuses,
		EphemeralContainerStatuses: s.EphemeralContainerStatuses,
	}
	all := [...][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses}
	for _, all := range all {
		for i, c := range all {
			all[i] = v1.ContainerStatus{
				Name: c.Name, ContainerID: c.ContainerID, RestartCount: c.RestartCount,
				State: trimState(c.State), LastTerminationState: trimState(c.LastTerminationState),
			}
		}
	}
}

// trimState removes messages of up to 4 KiB.
func trimState(s v1.ContainerState) v1.ContainerState {
	if s.Waiting != nil {
		s.Waiting.Message = ""
	}
	if s.Terminated != nil {
		s.Terminated.Message = ""
	}
	return s
}
