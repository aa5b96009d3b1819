package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/answer"
	"github.com/podgauge/podgauge/plugin/preferred"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Why is the reason, in one word, that a container does not get what it asks for.
type Why string

// The reasons.
const (
	WhyNothing   Why = "nothing_asked" // no id at all
	WhyUnknown   Why = "unknown"       // an id that is not offered
	WhyUnhealthy Why = "unhealthy"     // a device that has failed
	WhyAllocated Why = "allocated"     // a device that another container has by another id
	WhyTooMany   Why = "too_many"      // replicas of which a container may have one
	WhySameGPU   Why = "same_gpu"      // replicas that were to be on different GPUs
	WhyUnfit     Why = "unfit"         // a device that did not pass the check before the start
)

// Whys are all reasons.
func Whys() []Why {
	return []Why{WhyNothing, WhyUnknown, WhyUnhealthy, WhyAllocated, WhyTooMany, WhySameGPU, WhyUnfit}
}

// fault is one thing that is wrong with a request.
type fault struct {
	why  Why
	text string
}

// Allocate says what a container needs to use the devices that it was given. It
// looks at the board and asks nobody: the kubelet sets it no deadline, and while
// it runs no pod is admitted on the node.
func (l *life) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	begin := time.Now()
	all, ids, faults := l.allocate(r)
	var err error
	if len(faults) > 0 {
		err = status.Error(codes.FailedPrecondition, l.refuse("allocate", ids, faults).Error())
	}
	if l.Trace.Answered != nil {
		l.Trace.Answered("Allocate", time.Since(begin), err)
	}
	if err == nil && l.Trace.Allocated != nil {
		l.Trace.Allocated(l.resource, ids)
	}
	return all, err
}

// allocate also returns all ids that were asked for.
func (l *life) allocate(r *api.AllocateRequest) (*api.AllocateResponse, []device.OfferedID, []fault) {
	n := l.node()
	all := &api.AllocateResponse{}
	var asked []device.OfferedID
	var faults []fault
	for _, c := range r.GetContainerRequests() {
		ids := offeredIDs(c.GetDevicesIds())
		asked = append(asked, ids...)
		devices, wrong := n.usable(ids)
		faults = append(faults, wrong...)
		all.ContainerResponses = append(all.ContainerResponses, n.offer.options(l.resource, ids).Container(devices))
	}
	if len(faults) > 0 {
		return nil, asked, faults
	}
	return all, asked, nil
}

// options are those of a container that is given these ids of a resource. Only what
// is shared can be shared through MPS: a device may be offered as it is beside
// replicas of others, and then no daemon serves it.
func (o *offer) options(resource string, ids []device.OfferedID) answer.Options {
	var options answer.Options
	if o.rules.Answer != nil {
		options = o.rules.Answer(resource)
	}
	options.Resource = resource
	if !slices.ContainsFunc(ids, func(id device.OfferedID) bool { i, _ := o.find(id); return i.shared }) {
		options.MPSRoot = ""
	}
	return options
}

func offeredIDs(ids []string) []device.OfferedID {
	offered := make([]device.OfferedID, len(ids))
	for i, id := range ids {
		offered[i] = device.OfferedID(id)
	}
	return offered
}

// node is what is known at the time of a call. The list that the kubelet has may be older.
type node struct {
	*offer
	resource string
	statuses []device.Status
	holders  device.Holders
}

// node waits for nothing but the locks under which each part is published.
func (e *endpoint) node() node {
	n := node{resource: e.resource}
	n.offer, _ = e.look()
	n.statuses, _ = e.Look()
	n.holders, _ = e.Holders()
	return n
}

// usable finds the devices behind a container's ids, and says of each id that
// cannot be given why.
func (n node) usable(ids []device.OfferedID) (devices []answer.Device, faults []fault) {
	if len(ids) == 0 {
		return nil, []fault{{WhyNothing, "a container asks for no device"}}
	}
	on := map[device.GPU]device.OfferedID{} // replicas
	for _, id := range ids {
		i, s, wrong := n.check(id, len(ids))
		before, twice := on[s.GPU]
		switch {
		case wrong != fault{}:
			faults = append(faults, wrong)
		case twice && i.shared && n.rules.Policy == preferred.Distinct:
			faults = append(faults, fault{WhySameGPU, fmt.Sprintf("%s is of the same GPU as %s", id, before)})
		default:
			devices = append(devices, answer.Device{Device: s.Device, MIGIndex: s.Slice})
		}
		if i.shared {
			on[s.GPU] = id
		}
	}
	return devices, faults
}

// check returns why an id cannot be given to a container that asks for so many, whatever the
// other ids are; the zero fault if it can. GetPreferredAllocation uses it as well, so that it
// prefers nothing that Allocate rejects. It is the same for all ids of a device.
func (n node) check(id device.OfferedID, size int) (item, device.Status, fault) {
	i, found := n.find(id)
	s, known := find(n.statuses, id.Device())
	var others []device.Holding
	if found && !i.shared {
		others, _ = n.rules.others(n.holders, n.resource, i)
	}
	var wrong fault
	switch {
	case !found || !known:
		wrong = fault{WhyUnknown, fmt.Sprintf("%s is unknown", id)}
	case !i.until.IsZero(): // its container goes on, and the kubelet does not ask for that
		wrong = fault{WhyUnknown, fmt.Sprintf("%s is offered no more", id)}
	case !s.Healthy:
		wrong = fault{WhyUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, s.Reason)}
	case len(others) > 0:
		wrong = fault{WhyAllocated, fmt.Sprintf("%s is allocated to another container, as %s of %s", id, others[0].Offered, others[0].Resource)}
	case i.down != "" && i.down != elsewhere: // of that the newest allocations decide
		wrong = fault{WhyUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, i.down)}
	case i.onlyOne && size > 1:
		wrong = fault{WhyTooMany, fmt.Sprintf("%s is shared, and a container may have one such device, not %d", id, size)}
	}
	return i, s, wrong
}

// refuse says of every id why, in the log and to whoever counts: it ends up in the
// pod's status, where it is all that its owner sees. What is refused again and again
// is counted each time, and logged once in a while. The kubelet sends ids in random
// order: the reason is that of what the text names first.
func (l *life) refuse(what string, ids []device.OfferedID, faults []fault) error {
	slices.SortFunc(faults, func(a, b fault) int { return strings.Compare(a.text, b.text) })
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.text
	}
	err := fmt.Errorf("cannot %s: %s", what, strings.Join(slices.Compact(texts), ", "))
	if unsaid, say := l.refusals.met(what, faults[0].why, ids, time.Now()); unsaid > 0 {
		l.Log.Warn("refuse a container", "resource", l.resource, "ids", ids, "err", err, "unsaid", unsaid)
	} else if say {
		l.Log.Warn("refuse a container", "resource", l.resource, "ids", ids, "err", err)
	}
	if l.Trace.Refused != nil {
		l.Trace.Refused(l.resource, ids, faults[0].why, err)
	}
	return err
}
