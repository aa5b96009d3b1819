package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// RejectReason is the reason, in one word, that a container does not get what it asks for.
type RejectReason string

// The reasons.
const (
	RejectNoIDs     RejectReason = "nothing_asked" // no id at all
	RejectUnknown   RejectReason = "unknown"       // an id that is not offered
	RejectUnhealthy RejectReason = "unhealthy"     // a device that has failed
	RejectAllocated RejectReason = "allocated"     // a device that another container has by another id
	RejectTooMany   RejectReason = "too_many"      // replicas of which a container may have one
	RejectSameGPU   RejectReason = "same_gpu"      // replicas that were to be on different GPUs
	RejectUnusable  RejectReason = "unfit"         // a device that did not pass the check before the start
)

// RejectReasons are all reasons.
func RejectReasons() []RejectReason {
	return []RejectReason{RejectNoIDs, RejectUnknown, RejectUnhealthy, RejectAllocated, RejectTooMany, RejectSameGPU, RejectUnusable}
}

// requestError is one thing that is wrong with a request.
type requestError struct {
	reason  RejectReason
	message string
}

// Allocate says what a container needs to use the devices that it was given. It
// looks at the board and asks nobody: the kubelet sets it no deadline, and while
// it runs no pod is admitted on the node.
func (s *server) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	begin := time.Now()
	resp, ids, errs := s.buildResponse(r)
	var err error
	if len(errs) > 0 {
		err = status.Error(codes.FailedPrecondition, s.reject("allocate", ids, errs).Error())
	}
	if s.Hooks.OnCallServed != nil {
		s.Hooks.OnCallServed("Allocate", time.Since(begin), err)
	}
	if err == nil && s.Hooks.OnAllocated != nil {
		s.Hooks.OnAllocated(s.resource, ids)
	}
	return resp, err
}

// buildResponse also returns all ids that were asked for.
func (s *server) buildResponse(r *api.AllocateRequest) (*api.AllocateResponse, []device.AdvertisedID, []requestError) {
	snapshot := s.snapshot()
	resp := &api.AllocateResponse{}
	var requested []device.AdvertisedID
	var errs []requestError
	for _, c := range r.GetContainerRequests() {
		ids := advertisedIDs(c.GetDevicesIds())
		requested = append(requested, ids...)
		devices, rejected := snapshot.resolveDevices(ids)
		errs = append(errs, rejected...)
		resp.ContainerResponses = append(resp.ContainerResponses, snapshot.deviceList.responseOptions(s.resource, ids).ForContainer(devices))
	}
	if len(errs) > 0 {
		return nil, requested, errs
	}
	return resp, requested, nil
}

// responseOptions are those of a container that is given these ids of a resource. Only what
// is shared can be shared through MPS: a device may be offered as it is beside
// replicas of others, and then no daemon serves it.
func (l *deviceList) responseOptions(resource string, ids []device.AdvertisedID) response.Options {
	var options response.Options
	if l.rules.ResponseOptions != nil {
		options = l.rules.ResponseOptions(resource)
	}
	options.Resource = resource
	if !slices.ContainsFunc(ids, func(id device.AdvertisedID) bool { i, _ := l.find(id); return i.replica }) {
		options.MPSRoot = ""
	}
	return options
}

func advertisedIDs(ids []string) []device.AdvertisedID {
	parsed := make([]device.AdvertisedID, len(ids))
	for i, id := range ids {
		parsed[i] = device.AdvertisedID(id)
	}
	return parsed
}

// callSnapshot is what is known at the time of a call. The list that the kubelet has may be older.
type callSnapshot struct {
	*deviceList
	resource    string
	statuses    []device.Status
	allocations device.Allocations
}

// snapshot waits for nothing but the locks under which each part is published.
func (e *endpoint) snapshot() callSnapshot {
	c := callSnapshot{resource: e.resource}
	c.deviceList = e.list()
	c.statuses, _ = e.Statuses()
	c.allocations, _ = e.Allocations()
	return c
}

// resolveDevices finds the devices behind a container's ids, and says of each id that
// cannot be given why.
func (c callSnapshot) resolveDevices(ids []device.AdvertisedID) (devices []response.GrantedDevice, errs []requestError) {
	if len(ids) == 0 {
		return nil, []requestError{{RejectNoIDs, "a container asks for no device"}}
	}
	replicaOf := map[device.GPU]device.AdvertisedID{} // replicas
	for _, id := range ids {
		i, s, reqErr := c.checkID(id, len(ids))
		other, sameGPU := replicaOf[s.GPU]
		switch {
		case reqErr != requestError{}:
			errs = append(errs, reqErr)
		case sameGPU && i.replica && c.rules.Policy == preferred.Distinct:
			errs = append(errs, requestError{RejectSameGPU, fmt.Sprintf("%s is of the same GPU as %s", id, other)})
		default:
			devices = append(devices, response.GrantedDevice{Device: s.Device, MIGIndex: s.MIGDeviceIndex})
		}
		if i.replica {
			replicaOf[s.GPU] = id
		}
	}
	return devices, errs
}

// checkID returns why an id cannot be given to a container that asks for so many, whatever the
// other ids are; the zero fault if it can. GetPreferredAllocation uses it as well, so that it
// prefers nothing that Allocate rejects. It is the same for all ids of a device.
func (c callSnapshot) checkID(id device.AdvertisedID, size int) (listItem, device.Status, requestError) {
	i, found := c.find(id)
	s, known := findStatus(c.statuses, id.Device())
	var conflicts []device.Allocation
	if found && !i.replica {
		conflicts, _ = c.rules.conflicts(c.allocations, c.resource, i)
	}
	var reqErr requestError
	switch {
	case !found || !known:
		reqErr = requestError{RejectUnknown, fmt.Sprintf("%s is unknown", id)}
	case !i.removeAt.IsZero(): // its container goes on, and the kubelet does not ask for that
		reqErr = requestError{RejectUnknown, fmt.Sprintf("%s is offered no more", id)}
	case !s.Healthy:
		reqErr = requestError{RejectUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, s.Reason)}
	case len(conflicts) > 0:
		reqErr = requestError{RejectAllocated, fmt.Sprintf("%s is allocated to another container, as %s of %s", id, conflicts[0].DeviceID, conflicts[0].Resource)}
	case i.unusableReason != "" && i.unusableReason != reasonAllocatedElsewhere: // of that the newest allocations decide
		reqErr = requestError{RejectUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, i.unusableReason)}
	case i.onePerContainer && size > 1:
		reqErr = requestError{RejectTooMany, fmt.Sprintf("%s is shared, and a container may have one such device, not %d", id, size)}
	}
	return i, s, reqErr
}

// reject says of every id why, in the log and to whoever counts: it ends up in the
// pod's status, where it is all that its owner sees. What is refused again and again
// is counted each time, and logged once in a while. The kubelet sends ids in random
// order: the reason is that of what the text names first.
func (s *server) reject(operation string, ids []device.AdvertisedID, errs []requestError) error {
	slices.SortFunc(errs, func(a, b requestError) int { return strings.Compare(a.message, b.message) })
	messages := make([]string, len(errs))
	for i, f := range errs {
		messages[i] = f.message
	}
	err := fmt.Errorf("cannot %s: %s", operation, strings.Join(slices.Compact(messages), ", "))
	if s.rejections.allow(operation, errs[0].reason, ids, time.Now()) {
		s.Log.Warn("refuse a container", "resource", s.resource, "ids", ids, "err", err)
	}
	if s.Hooks.OnRejected != nil {
		s.Hooks.OnRejected(s.resource, ids, errs[0].reason, err)
	}
	return err
}
