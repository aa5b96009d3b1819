package plugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/text"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// heartbeatInterval is the longest wait of a loop.
	heartbeatInterval = 10 * time.Second
	// rejectionLogInterval is the interval between two messages about the same
	// fault: the kubelet repeats a rejected start every few seconds, and a
	// controller replaces a rejected pod.
	rejectionLogInterval = time.Minute
)

var errNotRegistered = errors.New("not registered yet")

// resourceState is what the servers of a resource have in common.
type resourceState struct {
	Options
	device.Heartbeat
	resource   string
	sockets    *folderWatch
	rejections *loglimit.Limiter[string] // by operation and first fault

	devices       pubsub.Value[*deviceList] // set by Plugin.Run
	wasRegistered atomic.Bool               // the kubelet has had a stream
	// unregistered is why the kubelet has no stream; nil: registered, or served
	// by a foreign plugin.
	unregistered pubsub.Value[error]
}

func newResourceState(o Options, resource string, sockets *folderWatch) *resourceState {
	r := &resourceState{
		Options: o, resource: resource, sockets: sockets,
		rejections: loglimit.New[string](rejectionLogInterval),
	}
	r.devices.Set(&deviceList{})
	r.unregistered.Set(errNotRegistered)
	return r
}

func (r *resourceState) kubeletSocket() string {
	return filepath.Join(r.Dir, filepath.Base(api.KubeletSocket))
}

func (r *resourceState) list() *deviceList { return r.devices.Newest() }

// setDevices publishes a list with the withdrawn ids of the list before. The
// result is the time of the next removal; zero: never.
//
// Until the list is published, a first stream waits for the lock, so no stream
// has ids that vanish as never registered.
func (r *resourceState) setDevices(
	list *deviceList, statuses []device.Status, allocations allocation.Snapshot, now time.Time,
) (next time.Time) {
	r.devices.Update(func(old *deviceList) *deviceList {
		next = old.carryOver(list, statuses, allocations.DeviceIDs(r.resource), r.wasRegistered.Load(), now)
		list.markConflicts(r.resource, allocations)
		return list
	})
	return next
}

// publish changes the published state of the resource.
func (r *resourceState) publish(change func(*Resource)) {
	r.Resources.Update(func(published []Resource) []Resource {
		all := slices.Clone(published)
		i, found := slices.BinarySearchFunc(all, r.resource, func(s Resource, name string) int {
			return strings.Compare(s.Name, name)
		})
		if !found {
			all = slices.Insert(all, i, Resource{Name: r.resource})
		}
		change(&all[i])
		return all
	})
}

// ready returns the reason why the kubelet has no stream. An empty list needs
// no registration.
func (r *resourceState) ready() error {
	if len(r.list().items) == 0 {
		return nil
	}
	return r.unregistered.Newest()
}

// pluginOptions selects the calls of the kubelet, which reads the options from
// GetDevicePluginOptions, not from the registration.
func (r *resourceState) pluginOptions() *api.DevicePluginOptions {
	return &api.DevicePluginOptions{
		GetPreferredAllocationAvailable: true, PreStartRequired: r.list().rules.PreStartCheck,
	}
}

// reject returns, logs and reports the error of a rejected request; nil without
// errs. The pod's status shows only the text, so the text has all faults. The
// kubelet sends ids in random order: the reported reason belongs to the first
// fault in the text.
func (r *resourceState) reject(operation string, ids []device.AdvertisedID, errs []requestError) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortFunc(errs, func(a, b requestError) int { return strings.Compare(a.message, b.message) })
	messages := text.Each(errs, func(err requestError) string { return err.message })
	err := fmt.Errorf("cannot %s: %s", operation, strings.Join(slices.Compact(messages), ", "))
	if r.rejections.Allow(operation+" "+messages[0], time.Now()) {
		r.Log.Warn("container rejected", "resource", r.resource, "ids", ids, "err", err)
	}
	r.Hooks.OnRejected(r.resource, ids, errs[0].reason, err)
	return status.Error(codes.FailedPrecondition, err.Error())
}
