// Package condition reports the health of a node's GPUs as conditions of the
// node.
package condition

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/message"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// heartbeatInterval is the interval of updates without a change, as
	// node-problem-detector's.
	heartbeatInterval = 5 * time.Minute
	// minInterval limits updates of a health state that flaps.
	minInterval = 2 * time.Second
	// maxDevices limits the devices in the message.
	maxDevices     = 8
	requestTimeout = 30 * time.Second
)

// Reporter keeps the conditions of nodes up to date. It is a nodes.Reporter.
type Reporter struct {
	client kubernetes.Interface
	kinds  []Kind
	sent   sync.Map // *sent by node, which the calls for the node own
}

// sent is what the API server has of a node.
type sent struct {
	conditions []corev1.NodeCondition // by kind; nil: unknown
	at         time.Time              // of the last update by this process
}

// New returns a Reporter.
func New(client kubernetes.Interface, kinds []Kind) *Reporter {
	return &Reporter{client: client, kinds: kinds}
}

// Forget drops the state of a node.
func (r *Reporter) Forget(_ context.Context, node string) error {
	r.sent.Delete(node)
	return nil
}

// Report updates the conditions if one differs from the sent one or is due.
func (r *Reporter) Report(ctx context.Context, node string, response *api.NodeResponse) (time.Duration, error) {
	if response.Driver.State == "starting" && len(response.Devices) == 0 { // nothing is known yet
		return 0, nil
	}
	stored, _ := r.sent.LoadOrStore(node, &sent{})
	s, now := stored.(*sent), time.Now()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if s.conditions == nil {
		if err := r.read(ctx, node, s); err != nil {
			return 0, err
		}
	}
	next, changed, due := heartbeatInterval, false, false
	conditions := make([]corev1.NodeCondition, len(r.kinds))
	for i := range r.kinds {
		c, old := r.kinds[i].condition(response), &s.conditions[i]
		c.LastHeartbeatTime = metav1.NewTime(now.UTC().Truncate(time.Second))
		c.LastTransitionTime = old.LastTransitionTime
		if c.Status != old.Status || c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = c.LastHeartbeatTime
		}
		changed = changed || c.Status != old.Status || c.Reason != old.Reason || c.Message != old.Message
		age := now.Sub(old.LastHeartbeatTime.Time)
		due = due || age >= heartbeatInterval
		next = min(next, heartbeatInterval-age)
		conditions[i] = c
	}
	switch wait := s.at.Add(minInterval).Sub(now); {
	case changed && wait > 0:
		return wait, nil
	case !changed && !due:
		return max(next, minInterval), nil
	}
	if _, err := r.patch(ctx, node, map[string]any{"status": map[string]any{"conditions": conditions}}); err != nil {
		return 0, err
	}
	s.conditions, s.at = conditions, now
	return heartbeatInterval, nil
}

// read reads the conditions of an earlier process. An empty patch returns the
// node, without the permission to read nodes.
func (r *Reporter) read(ctx context.Context, name string, s *sent) error {
	node, err := r.patch(ctx, name, struct{}{})
	if err != nil {
		return err
	}
	s.conditions = make([]corev1.NodeCondition, len(r.kinds))
	for i := range r.kinds {
		for _, c := range node.Status.Conditions {
			if c.Type == r.kinds[i].Type {
				s.conditions[i] = c
			}
		}
	}
	return nil
}

func (r *Reporter) patch(ctx context.Context, node string, v any) (*corev1.Node, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return r.client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
}

// condition returns the condition of a kind, without times.
func (k *Kind) condition(r *api.NodeResponse) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: k.Type, Status: k.Healthy, Reason: k.HealthyReason, Message: k.HealthyMessage}
	var messages []string
	for _, f := range faults(r) {
		reason, ok := k.reason(f.reason)
		if !ok {
			continue
		}
		if messages == nil { // the first fault's
			c.Reason = reason
		}
		messages = append(messages, f.message)
	}
	switch {
	case len(messages) > 0:
		c.Status = corev1.ConditionTrue
		if k.Healthy == corev1.ConditionTrue {
			c.Status = corev1.ConditionFalse
		}
		if more := len(messages) - maxDevices; more > 0 {
			messages = append(messages[:maxDevices], fmt.Sprintf("%d more.", more))
		}
		c.Message = text.Printable(strings.Join(messages, " "))
	case r.Driver.State != "up":
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, k.UnknownReason, "The driver is not ready."
	case c.Message == "":
		gpus := 0
		for i := range r.Devices {
			if isGPU(&r.Devices[i]) && !r.Devices[i].Gone {
				gpus++
			}
		}
		c.Message = text.Plural(gpus, "GPU") + " healthy."
	}
	return c
}

// fault is a reason why a device, or the node, is unhealthy.
type fault struct{ reason, message string }

// faults returns missing GPUs, and then each unhealthy device.
func faults(r *api.NodeResponse) (all []fault) {
	if r.MissingGPUs > 0 && r.Driver.State == "up" {
		all = append(all, fault{
			"missing", fmt.Sprintf("%d of %d expected GPUs missing.", r.MissingGPUs, r.ExpectedGPUs),
		})
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.Healthy || !isGPU(d) && sharesFault(d, r.Devices) {
			continue
		}
		f := fault{d.Reason, message.Device(d.ID, d.GPU, d.Index, d.Profile) + ": " + message.Fault(d.Reason, d.Action)}
		if d.Reason == device.ReasonGone && !isGPU(d) {
			f.reason = "mig_gone" // no GPU is missing
		}
		if d.Note != "" {
			f.message += " " + d.Note
		}
		all = append(all, f)
	}
	return all
}

func isGPU(d *api.DeviceJSON) bool { return string(d.ID) == string(d.GPU) }

// sharesFault reports whether a MIG device is unhealthy because of the GPU.
func sharesFault(d *api.DeviceJSON, all []api.DeviceJSON) bool {
	return slices.ContainsFunc(all, func(o api.DeviceJSON) bool {
		return isGPU(&o) && o.GPU == d.GPU && !o.Healthy && o.Reason == d.Reason
	})
}
