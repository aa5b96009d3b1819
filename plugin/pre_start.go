package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// preStartTimeout is how long a container's start may wait for its devices. The
// kubelet itself gives up after 30 s.
const preStartTimeout = 2 * time.Second

// PreStartContainer has the devices of a container asked, before each of its
// starts, whether they can be used. What hangs is refused: the kubelet tries the
// start again by itself.
func (s *server) PreStartContainer(ctx context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	begin := time.Now()
	var err error
	ids := advertisedIDs(r.GetDevicesIds())
	if errs := s.checkDevices(ctx, ids); len(errs) > 0 {
		err = status.Error(codes.FailedPrecondition, s.reject("start", ids, errs).Error())
	}
	if s.Hooks.OnCallServed != nil {
		s.Hooks.OnCallServed("PreStartContainer", time.Since(begin), err)
	}
	if err != nil {
		return nil, err
	}
	return &api.PreStartContainerResponse{}, nil
}

// checkDevices asks all devices at the same time. Ids that are not listed any more are not
// asked about: their containers run, and only start anew. Those that are offered no
// more and listed still are asked about as shared: the device may be somebody
// else's by now as well.
func (s *server) checkDevices(ctx context.Context, ids []device.AdvertisedID) []requestError {
	list := s.list()
	if s.CheckUsable == nil || !list.rules.PreStartCheck {
		return nil
	}
	statuses, _ := s.Statuses()
	var errs []requestError
	checks := map[device.ID]UsabilityCheck{}
	for _, id := range ids {
		i, found := list.find(id)
		if !found {
			continue
		}
		st, known := findStatus(statuses, i.device.ID)
		switch {
		case !known:
			errs = append(errs, requestError{RejectUnknown, fmt.Sprintf("%s is gone", id)})
		case !st.Healthy:
			errs = append(errs, requestError{RejectUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, st.Reason)})
		case !i.removeAt.IsZero():
			checks[st.ID] = UsabilityCheck{st.Device, false}
		case i.unusableReason != "":
			errs = append(errs, requestError{RejectUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, i.unusableReason)})
		default:
			checks[st.ID] = UsabilityCheck{st.Device, !i.replica}
		}
	}
	return append(errs, s.runChecks(ctx, checks)...)
}

// runChecks has every device asked, and waits for none beyond preStartTimeout.
func (s *server) runChecks(ctx context.Context, checks map[device.ID]UsabilityCheck) (errs []requestError) {
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	results := make(chan error, len(checks))
	for _, a := range checks {
		go func() { results <- s.CheckUsable(ctx, a) }() // each returns when ctx is done, and is waited for
	}
	for range checks {
		if err := <-results; err != nil {
			errs = append(errs, requestError{RejectUnusable, err.Error()})
		}
	}
	return errs
}
