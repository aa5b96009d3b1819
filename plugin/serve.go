package plugin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/device"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// options say which calls the kubelet is to make: it takes them from the answer
// of GetDevicePluginOptions and not from the registration.
func (l *life) options() *api.DevicePluginOptions { return &api.DevicePluginOptions{} }

// GetDevicePluginOptions is called by the kubelet from within Register.
func (l *life) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return l.options(), nil
}

// ListAndWatch sends the list of devices, and again whenever it differs from the
// one sent: the kubelet writes each to disk. What happens while a list is being
// sent shows in the next.
func (l *life) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	l.opened()
	defer l.closed()
	sent := &api.ListAndWatchResponse{} // a first list without a device says no more than none
	for {
		statuses, changed := l.Look()
		list := listOf(statuses)
		if !proto.Equal(list, sent) {
			if err := stream.Send(list); err != nil {
				return err
			}
			sent = list
			l.tellSent(statuses)
		}
		select {
		case <-changed:
		case <-l.done:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// listOf names every device, the unhealthy too: the kubelet reports one that is
// missing as healthy in the status of the pod that holds it. The order is that of
// the ids, so that a change of the board's order is none.
func listOf(statuses []device.Status) *api.ListAndWatchResponse {
	list := &api.ListAndWatchResponse{}
	for _, s := range statuses {
		health := api.Unhealthy
		if s.Healthy {
			health = api.Healthy
		}
		list.Devices = append(list.Devices, &api.Device{ID: string(s.ID.Offered()), Health: health, Topology: topology(s.Device)})
	}
	slices.SortFunc(list.Devices, func(a, b *api.Device) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// topology is nil where the NUMA node is not known: one that is there but empty
// makes the device vanish from the kubelet's answers.
func topology(d device.Device) *api.TopologyInfo {
	if d.NUMANode < 0 {
		return nil
	}
	return &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
}

func (l *life) opened() {
	l.first.Do(func() { close(l.streaming) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams++
	l.tellStreams()
}

// closed ends the life with any of its streams. The kubelet opens one and never
// another; should somebody else look in and leave, a new registration is the
// cheaper mistake.
func (l *life) closed() {
	l.gone.Do(func() { close(l.broken) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams--
	l.tellStreams()
}

func (l *life) tellStreams() {
	if l.Trace.Streaming != nil {
		l.Trace.Streaming(l.streams)
	}
}

func (l *life) tellSent(statuses []device.Status) {
	if l.Trace.Sent == nil {
		return
	}
	healthy := 0
	for _, s := range statuses {
		if s.Healthy {
			healthy++
		}
	}
	l.Trace.Sent(len(statuses), healthy)
}

// PreStartContainer is not asked for; a kubelet that calls it all the same is
// not in the way of a container.
func (l *life) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

// GetPreferredAllocation is not offered, and an error would fail the pod: the
// answer is what is available, in its order.
func (l *life) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		ids := slices.Clone(c.GetMustIncludeDeviceIDs())
		for _, id := range c.GetAvailableDeviceIDs() {
			if len(ids) < int(c.GetAllocationSize()) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return answer, nil
}

// Allocate says what a container needs to use the devices that it was given. It
// looks at the board and asks nobody: the kubelet sets it no deadline, and while
// it runs no pod is admitted on the node.
func (l *life) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	begin := time.Now()
	answer, ids, err := l.allocate(r)
	if err != nil {
		l.Log.Warn("refuse an allocation", "resource", l.Resource, "ids", ids, "err", err)
		if l.Trace.Refused != nil {
			l.Trace.Refused(l.Resource, ids, err)
		}
		err = status.Error(codes.FailedPrecondition, err.Error())
	}
	if l.Trace.Answered != nil {
		l.Trace.Answered("Allocate", time.Since(begin), err)
	}
	if err == nil && l.Trace.Allocated != nil {
		l.Trace.Allocated(l.Resource, ids)
	}
	return answer, err
}

// allocate also returns all ids that were asked for.
func (l *life) allocate(r *api.AllocateRequest) (*api.AllocateResponse, []device.OfferedID, error) {
	statuses, _ := l.Look()
	answer := &api.AllocateResponse{}
	var all []device.OfferedID
	var wrong []string
	for _, c := range r.GetContainerRequests() {
		ids := make([]device.OfferedID, len(c.GetDevicesIds()))
		for i, id := range c.GetDevicesIds() {
			ids[i] = device.OfferedID(id)
		}
		all = append(all, ids...)
		devices, bad := usable(statuses, ids)
		wrong = append(wrong, bad...)
		answer.ContainerResponses = append(answer.ContainerResponses, containerAnswer(devices, l.DeviceSpecs))
	}
	if len(wrong) > 0 {
		return nil, all, refusal(wrong)
	}
	return answer, all, nil
}
