package taints

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// driverUp is the state of a driver that lists all devices.
const driverUp = "up"

// Report creates, updates and deletes the rules of a node, so that they follow
// the health of the devices. The rules of a node that does not respond (r is
// nil) stay.
//
// A rule also stays while the driver is not up, and while its device is
// unhealthy but missing in the node's ResourceSlices, which DRA drivers may
// publish anew when they start.
func (t *Taints) Report(ctx context.Context, node string, r *api.NodeResponse) (next time.Duration, err error) {
	s := t.session.Load()
	switch {
	case r == nil:
		return 0, nil
	case s == nil:
		return retryInterval, nil
	}
	old, err := s.rulesOf(node)
	if err != nil {
		return 0, err
	}
	wanted, missing, err := t.wantedRules(ctx, node, r.Devices)
	if err != nil {
		return 0, err
	}
	if len(wanted)+len(missing) > 0 {
		next = publishedInterval
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		errs = append(errs, t.save(ctx, s, old[name], wanted[name]))
	}
	for name, rule := range old {
		isOver := r.Driver.State == driverUp && !slices.Contains(missing, rule.Annotations[deviceUUID])
		if wanted[name] == nil && isOver {
			errs = append(errs, t.remove(ctx, s, rule))
		}
	}
	return next, errors.Join(errs...)
}

// wantedRules returns the rules that the devices need, by name, and the devices
// that need a rule and are not published.
func (t *Taints) wantedRules(ctx context.Context, node string, devices []api.DeviceJSON) (
	wanted map[string]*resource.DeviceTaintRule, missing []string, err error,
) {
	wanted = map[string]*resource.DeviceTaintRule{}
	for _, d := range devices {
		taint := t.o.Effects.taintOf(&d)
		if taint.Effect == "" || taint.Effect == resource.DeviceTaintEffectNone && t.withoutNone.Load() {
			continue
		}
		published, err := t.published.devices(ctx, node)
		if err != nil {
			return nil, nil, err
		}
		isMissing := true
		for _, p := range published {
			if !p.is(&d) {
				continue
			}
			isMissing = false
			rule := newRule(node, d.ID, p, taint)
			wanted[rule.Name] = rule // a MIG device comes after its GPU, and its health includes the GPU's
		}
		if isMissing {
			missing = append(missing, string(d.ID))
		}
	}
	return wanted, missing, nil
}

// save creates or updates a rule; old is nil if there is none. The API server
// keeps the taint's time while the effect stays.
func (t *Taints) save(ctx context.Context, s *session, old, wanted *resource.DeviceTaintRule) error {
	rule, message := wanted, "device tainted"
	if old != nil {
		rule = old.DeepCopy()
		rule.Annotations, rule.Spec.DeviceSelector = wanted.Annotations, wanted.Spec.DeviceSelector
		rule.Spec.Taint = wanted.Spec.Taint
		rule.Spec.Taint.TimeAdded = old.Spec.Taint.TimeAdded
		if equality.Semantic.DeepEqual(old, rule) {
			return nil
		}
	}
	object, err := s.encode(rule)
	if err != nil {
		return err
	}
	if old == nil {
		_, err = s.rules.Create(ctx, object, metav1.CreateOptions{})
	} else {
		message = "device taint changed"
		_, err = s.rules.Update(ctx, object, metav1.UpdateOptions{})
	}
	if rule.Spec.Taint.Effect == resource.DeviceTaintEffectNone && apierrors.IsInvalid(err) {
		t.withoutNone.Store(true)
		t.warn("leaving out taints with the effect None", err)
		return nil
	}
	return t.done(err, message, rule)
}
