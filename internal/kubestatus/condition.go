package kubestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
)

const (
	// ConditionType is the type of the node condition. As with
	// node-problem-detector's conditions, "True" is the problem.
	ConditionType = "GPUUnhealthy"
	// conditionInterval is the interval of updates without a change, as
	// node-problem-detector's.
	conditionInterval = 5 * time.Minute
	// minConditionInterval limits updates of a health state that flaps.
	minConditionInterval = 2 * time.Second
	// maxConditionDevices limits the devices in the message.
	maxConditionDevices = 8
)

// Condition reports the health of the GPUs as a condition of the node.
type Condition struct {
	device.Heartbeat
	o Options

	// All below belong to Run's goroutine.
	sent     nodeCondition // as the API server has it; zero: unknown
	sentAt   time.Time
	requests requestState
}

// nodeCondition is a NodeCondition of core/v1.
type nodeCondition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastHeartbeatTime  time.Time `json:"lastHeartbeatTime"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

// NewCondition returns a Condition.
func NewCondition(o Options) *Condition {
	return &Condition{o: o, requests: newRequestState(o.Log)}
}

// Run keeps the condition up to date until ctx is done.
func (r *Condition) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		r.Beat()
		statuses, changed := r.o.State.Devices.Get()
		if statuses == nil { // nothing is known yet
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(heartbeatInterval):
			}
			continue
		}
		driver, _ := r.o.State.Driver.Get()
		err := r.update(ctx, conditionOf(statuses, driver, r.o.State.ExpectedGPUs()))
		if err != nil && ctx.Err() == nil {
			r.Beat()
			_ = retry.Sleep(ctx, r.requests.failed(err))
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
			_ = retry.Sleep(ctx, min(minBackoff/5, minConditionInterval))
		case <-time.After(heartbeatInterval):
		}
	}
	return nil
}

// update sends a condition, if it differs from the sent condition or is due.
func (r *Condition) update(ctx context.Context, c nodeCondition) error {
	now := time.Now()
	same := c.Status == r.sent.Status && c.Reason == r.sent.Reason && c.Message == r.sent.Message
	if same && now.Sub(r.sentAt) < conditionInterval {
		return nil
	}
	if !same {
		if err := retry.Sleep(ctx, time.Until(r.sentAt.Add(minConditionInterval))); err != nil {
			return err
		}
		now = time.Now()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if r.sent.Type == "" {
		var err error
		if r.sent, err = r.read(ctx); err != nil {
			return err
		}
	}
	c.LastHeartbeatTime, c.LastTransitionTime = now.UTC().Truncate(time.Second), r.sent.LastTransitionTime
	if c.Status != r.sent.Status || c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = c.LastHeartbeatTime
	}
	if _, err := r.patch(ctx, map[string]any{"status": map[string]any{"conditions": []nodeCondition{c}}}); err != nil {
		return err
	}
	r.sent, r.sentAt = c, now
	r.requests.succeeded()
	return nil
}

// read returns the node's condition of an earlier process. An empty patch
// returns the node, without the permission to read nodes.
func (r *Condition) read(ctx context.Context) (nodeCondition, error) {
	body, err := r.patch(ctx, struct{}{})
	if err != nil {
		return nodeCondition{}, err
	}
	var node struct {
		Status struct{ Conditions []nodeCondition }
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return nodeCondition{}, fmt.Errorf("decode node: %w", err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == ConditionType {
			return c, nil
		}
	}
	return nodeCondition{}, nil
}

func (r *Condition) patch(ctx context.Context, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return r.o.APIServer.Do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(r.o.NodeName)+"/status",
		"application/strategic-merge-patch+json", body)
}

// conditionOf returns the condition of the devices, without times.
func conditionOf(statuses []device.Status, driver device.Driver, expected int) nodeCondition {
	c := nodeCondition{Type: ConditionType, Status: "False", Reason: "GPUsHealthy"}
	gpus, faults := 0, []string(nil)
	for i := range statuses {
		s := &statuses[i]
		if s.WholeGPU() && !s.Gone {
			gpus++
		}
		if s.Healthy || !s.WholeGPU() && sharesFault(s, statuses) {
			continue
		}
		fault := deviceName(s.ID, s.GPU, s.Index, s.Profile) + ": " + faultMessage(s.Reason, s.Action)
		if s.Note != "" {
			fault += " " + s.Note
		}
		faults = append(faults, fault)
	}
	if missing := device.MissingGPUs(statuses, expected); missing > 0 && driver.State == device.DriverUp {
		faults = slices.Insert(faults, 0, fmt.Sprintf("%d of %d expected GPUs missing.", missing, expected))
	}
	switch {
	case len(faults) > 0:
		c.Status, c.Reason = "True", "GPUsUnhealthy"
		if more := len(faults) - maxConditionDevices; more > 0 {
			faults = append(faults[:maxConditionDevices], fmt.Sprintf("%d more.", more))
		}
		c.Message = text.Printable(strings.Join(faults, " "))
	case driver.State != device.DriverUp:
		c.Status, c.Reason, c.Message = "Unknown", "DriverNotReady", "The driver is not ready."
	default:
		c.Message = text.Plural(gpus, "GPU") + " healthy."
	}
	return c
}

// sharesFault reports whether a MIG device is unhealthy because of the GPU.
func sharesFault(s *device.Status, all []device.Status) bool {
	return slices.ContainsFunc(all, func(o device.Status) bool {
		return o.WholeGPU() && o.GPU == s.GPU && !o.Healthy && o.Reason == s.Reason
	})
}
