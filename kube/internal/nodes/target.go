package nodes

import (
	"cmp"
	"net"
	"strconv"

	"github.com/podgauge/podgauge/internal/web/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const defaultPort = 9400

// target is a pod to follow. The zero target is no pod.
type target struct {
	uid types.UID
	url string
}

// targets returns the pod to follow of each node. During an update with a
// surge, a node has two pods: a ready pod wins, and then the newer one. The
// node's name is from the pod, for a response may name any node.
func (o *Options) targets(pods []any) map[string]target {
	best := map[string]*corev1.Pod{}
	for _, object := range pods {
		p := object.(*corev1.Pod)
		if p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if other := best[p.Spec.NodeName]; other == nil || compare(p, other) > 0 {
			best[p.Spec.NodeName] = p
		}
	}
	targets := make(map[string]target, len(best))
	for name, p := range best {
		address := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(o.port(p)))
		targets[name] = target{uid: p.UID, url: o.Scheme + "://" + address + api.NodePath + "?watch"}
	}
	return targets
}

// compare orders the pods of a node by preference.
func compare(a, b *corev1.Pod) int {
	return cmp.Or(
		cmp.Compare(ready(a), ready(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// ready returns 1 for a ready pod.
func ready(p *corev1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return 1
		}
	}
	return 0
}

func (o *Options) port(p *corev1.Pod) int {
	if o.Port != 0 {
		return o.Port
	}
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.Name == "metrics" {
				return int(port.ContainerPort)
			}
		}
	}
	return defaultPort
}

// trim drops the largest fields of a pod that are not in use.
func trim(object any) (any, error) {
	if p, ok := object.(*corev1.Pod); ok { // not the last state of a deleted pod
		p.ManagedFields, p.Annotations, p.Spec.Volumes = nil, nil, nil
	}
	return object, nil
}
