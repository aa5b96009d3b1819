package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/kube/internal/message"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
)

const (
	// component is the component of the events.
	component = "podgauge"
	// nodeNamespace has the events of nodes, as the kubelet's.
	nodeNamespace = metav1.NamespaceDefault
	// maxClockSkew is the allowed lead of the API server's clock over the
	// node's clock.
	maxClockSkew   = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// eventKey identifies an event of a node's incident.
type eventKey struct {
	incident  uint64
	namespace string // of the pod; empty: of the node
	name      string
	recovered bool
}

// errOtherNode is the error of a node that names a pod of another node.
var errOtherNode = errors.New("the pod is on another node")

// newEvent returns a warning about the node. An event recorder of client-go
// would name it at random, and a restart would repeat it.
func newEvent(name, namespace, node string, first, last time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		// As the kubelet's: kubectl describe finds the events of a node by the
		// name in place of the UID.
		InvolvedObject:      corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		Type:                corev1.EventTypeWarning,
		Source:              corev1.EventSource{Component: component, Host: node},
		FirstTimestamp:      metav1.NewTime(first),
		LastTimestamp:       metav1.NewTime(last),
		Count:               1,
		ReportingController: component,
		ReportingInstance:   node,
	}
}

// newIncidentEvent returns the event of a key.
func newIncidentEvent(ctx context.Context, client kubernetes.Interface, node string, key eventKey,
	i *incident.Incident, count int32,
) (*corev1.Event, error) {
	e := newEvent(eventName(i.ID, key), cmp.Or(key.namespace, nodeNamespace), node, i.First, i.Last)
	e.Reason, e.Message, e.Count = "GPUError", message.Incident(i), count
	switch {
	case key.recovered:
		e.Reason, e.Type, e.Message = "GPURecovered", corev1.EventTypeNormal, message.Recovery(i)
		e.FirstTimestamp = metav1.NewTime(*i.RecoveredAt)
		e.LastTimestamp = e.FirstTimestamp
	case i.Reason == device.ReasonRetired:
		e.Reason = "GPURetired"
	case i.MarkedUnhealthy:
		e.Reason = "GPUUnhealthy"
	}
	if key.namespace == "" {
		return e, nil
	}
	uid, err := podUID(ctx, client, node, key, i)
	e.InvolvedObject = corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: key.namespace, Name: key.name, UID: uid,
	}
	return e, err
}

// podUID returns the UID of an affected pod, without which kubectl describe
// does not show the event. It is empty if the pod was deleted.
func podUID(ctx context.Context, client kubernetes.Interface, node string, key eventKey, i *incident.Incident) (
	types.UID, error,
) {
	affected := i.Affected[slices.IndexFunc(i.Affected, func(c incident.AffectedContainer) bool {
		return c.Namespace == key.namespace && c.Pod == key.name
	})]
	pod, err := client.CoreV1().Pods(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return types.UID(affected.UID), nil
	case err != nil:
		return "", err
	}
	// kubectl describe uses the UID of the static pod
	mirrored := types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
	known, current := types.UID(affected.UID), cmp.Or(mirrored, pod.UID)
	switch {
	case known != "" && known != current: // of an earlier pod of the same name
		return known, nil
	case known != "" && pod.Spec.NodeName != node:
		return "", errOtherNode
	case known == "" && mirrored == "" && (pod.Spec.NodeName != node ||
		pod.CreationTimestamp.After(affected.Since.Add(maxClockSkew))): // a later pod of the same name
		return "", nil
	}
	return current, nil
}

// eventName returns the name of an event: the object's name and the incident's
// ID.
func eventName(id uint64, key eventKey) string {
	suffix := fmt.Sprintf(".%016x", id)
	if key.recovered {
		suffix += ".recovered"
	}
	longest := validation.DNS1123SubdomainMaxLength - len(suffix)
	return strings.TrimRight(key.name[:min(len(key.name), longest)], "-.") + suffix
}
