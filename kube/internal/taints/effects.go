package taints

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/xid"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The classes of devices with a taint.
const (
	ClassHardware = "hardware" // a fault of the GPU or the machine
	ClassSoftware = "software" // an error of an application or of the driver that leaves the GPU usable
	ClassDriver   = "driver"   // the driver fails or is released, or no check has passed since podgauge's start
	ClassRetired  = "retired"  // by an operator
	ClassSuspect  = "suspect"  // a report is being verified; the device is still in use
)

// The keys of the taints. The value is the reason of an unhealthy device.
const (
	KeyUnhealthy = "podgauge.io/unhealthy"
	KeySuspect   = "podgauge.io/suspect"
)

// Effects have the effect for each class, or for a required action ("reboot"),
// which takes precedence.
type Effects map[string]resource.DeviceTaintEffect

// DefaultEffects evict no pod.
func DefaultEffects() Effects {
	const noSchedule = resource.DeviceTaintEffectNoSchedule
	return Effects{
		ClassHardware: noSchedule, ClassSoftware: noSchedule, ClassDriver: noSchedule, ClassRetired: noSchedule,
		ClassSuspect: resource.DeviceTaintEffectNone,
	}
}

// ParseEffects returns the defaults with these exceptions: effects by class or
// action, or "off" for no taint.
func ParseEffects(exceptions map[string]string) (Effects, error) {
	effects := DefaultEffects()
	names := slices.Concat(slices.Sorted(maps.Keys(effects)), xid.Actions())
	for name, effect := range exceptions {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("parse effects: unknown class %q: expected %s", name, strings.Join(names, ", "))
		}
		switch e := resource.DeviceTaintEffect(effect); e {
		case resource.DeviceTaintEffectNone, resource.DeviceTaintEffectNoSchedule, resource.DeviceTaintEffectNoExecute:
			effects[name] = e
		case "off":
			effects[name] = ""
		default:
			return nil, fmt.Errorf("parse effects: %s of %s: expected NoSchedule, NoExecute, None or off", effect, name)
		}
	}
	return effects, nil
}

// taintOf returns the taint of a device; without an effect if it has none.
func (e Effects) taintOf(d *api.DeviceJSON) resource.DeviceTaint {
	taint := resource.DeviceTaint{Key: KeyUnhealthy, Value: labelValue(d.Reason), Effect: e[classOf(d)]}
	if d.Health == device.Suspect.String() {
		taint.Key = KeySuspect
	}
	if byAction, ok := e[d.Action]; ok {
		taint.Effect = byAction
	}
	return taint
}

// classOf returns the class of a device, empty if it is healthy.
func classOf(d *api.DeviceJSON) string {
	switch {
	case d.Health == device.Suspect.String():
		return ClassSuspect
	case d.Healthy:
		return ""
	case d.Reason == device.ReasonRetired:
		return ClassRetired
	case xid.OfDriver(d.Reason):
		return ClassDriver
	case xid.BySoftware(d.Reason):
		return ClassSoftware
	}
	return ClassHardware
}

// labelValue returns text as a label's value.
func labelValue(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-", r)) {
			return r
		}
		return '_'
	}, text)
	return strings.Trim(text[:min(len(text), validation.LabelValueMaxLength)], "._-")
}
