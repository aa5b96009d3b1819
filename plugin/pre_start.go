package plugin

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// preStartTimeout bounds the checks of a container's devices. The kubelet's own
// timeout is 30 s.
const preStartTimeout = 2 * time.Second

// PreStartContainer checks before each start of a container whether the devices
// are usable.
//
// A hanging check rejects the start; the kubelet repeats the start.
func (s *server) PreStartContainer(
	ctx context.Context, r *api.PreStartContainerRequest,
) (*api.PreStartContainerResponse, error) {
	begin := time.Now()
	ids := advertisedIDs(r.GetDevicesIds())
	err := s.reject("start", ids, s.checkDevices(ctx, ids))
	s.Hooks.OnCallServed("PreStartContainer", time.Since(begin), err)
	if err != nil {
		return nil, err
	}
	return &api.PreStartContainerResponse{}, nil
}

// checkDevices returns the faults of a container's devices.
//
//	id                 check
//	unlisted           no check: the container restarts in place
//	withdrawn          usable: the device may be shared by now
//	replica            usable
//	unshared device    usable, without a process
func (s *server) checkDevices(ctx context.Context, ids []device.AdvertisedID) []requestError {
	list := s.list()
	if !list.rules.PreStartCheck {
		return nil
	}
	statuses := s.Devices.Newest()
	var errs []requestError
	checks := map[device.ID]usabilityCheck{}
	for _, id := range ids {
		i, found := list.find(id)
		if !found {
			continue
		}
		withdrawn := !i.removeAt.IsZero()
		d, known := findStatus(statuses, i.device.ID)
		switch {
		case !known:
			errs = append(errs, rejectf(RejectUnknown, "%s is gone", id))
		case !d.Healthy:
			errs = append(errs, rejectf(RejectUnhealthy, "%s is unhealthy (%s)", id, d.Reason))
		case i.unusableReason != "" && !withdrawn:
			errs = append(errs, rejectf(RejectUnhealthy, "%s is unhealthy (%s)", id, i.unusableReason))
		default:
			checks[d.ID] = usabilityCheck{device: d.Device, exclusive: !withdrawn && !i.replica}
		}
	}
	return append(errs, s.runChecks(ctx, checks)...)
}

// usabilityCheck asks whether a container can start on a device.
type usabilityCheck struct {
	device    device.Device
	exclusive bool
}

// runChecks runs all checks at once, for preStartTimeout at most.
func (s *server) runChecks(ctx context.Context, checks map[device.ID]usabilityCheck) (errs []requestError) {
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	results := make(chan error, len(checks))
	for _, c := range checks {
		go func() { results <- s.CheckUsable(ctx, c.device, c.exclusive) }() // received below; returns when ctx is done
	}
	for range checks {
		if err := <-results; err != nil {
			errs = append(errs, requestError{RejectUnusable, err.Error()})
		}
	}
	return errs
}
