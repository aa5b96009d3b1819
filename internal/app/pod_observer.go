package app

import (
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/podresources"
)

// claimedDevice returns the device of a claim. Ignored claims allocate no
// device.
func (a *app) claimedDevice(c device.Claim) (device.ID, bool) {
	settings, _ := a.node.Settings.Get()
	if settings.Claims.Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) {
		return "", false
	}
	return a.machine.ClaimedDevice(c, a.node.Statuses())
}

// podObserver passes pods to podresources.
type podObserver struct {
	*node.State
	*podresources.Client
}

// OnPodEnded reports the end of a pod, unless a new pod with the same name
// runs.
func (o podObserver) OnPodEnded(p pods.Pod) {
	known, _ := o.Pods.Get()
	if other, found := known.ByName(p.Namespace, p.Name); found && other.UID != p.UID && !other.Ended() {
		return
	}
	o.Client.OnPodEnded(p.Namespace, p.Name)
}
