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

// preStartMost is how long a container's start may wait for its devices. The
// kubelet itself gives up after 30 s.
const preStartMost = 2 * time.Second

// PreStartContainer has the devices of a container asked, before each of its
// starts, whether they can be used. What hangs is refused: the kubelet tries the
// start again by itself.
func (l *life) PreStartContainer(ctx context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	begin := time.Now()
	var err error
	ids := offeredIDs(r.GetDevicesIds())
	if faults := l.unfit(ctx, ids); len(faults) > 0 {
		err = status.Error(codes.FailedPrecondition, l.refuse("start", ids, faults).Error())
	}
	if l.Trace.Answered != nil {
		l.Trace.Answered("PreStartContainer", time.Since(begin), err)
	}
	if err != nil {
		return nil, err
	}
	return &api.PreStartContainerResponse{}, nil
}

// unfit asks all devices at the same time. Ids that are not listed any more are not
// asked about: their containers run, and only start anew. Those that are offered no
// more and listed still are asked about as shared: the device may be somebody
// else's by now as well.
func (l *life) unfit(ctx context.Context, ids []device.OfferedID) []fault {
	offered, _ := l.look()
	if l.Fit == nil || !offered.rules.PreStart {
		return nil
	}
	statuses, _ := l.Look()
	var faults []fault
	asked := map[device.ID]Ask{}
	for _, id := range ids {
		i, found := offered.find(id)
		if !found {
			continue
		}
		s, known := find(statuses, i.device.ID)
		switch {
		case !known:
			faults = append(faults, fault{WhyUnknown, fmt.Sprintf("%s is gone", id)})
		case !s.Healthy:
			faults = append(faults, fault{WhyUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, s.Reason)})
		case !i.until.IsZero():
			asked[s.ID] = Ask{s.Device, false}
		case i.down != "":
			faults = append(faults, fault{WhyUnhealthy, fmt.Sprintf("%s is unhealthy (%s)", id, i.down)})
		default:
			asked[s.ID] = Ask{s.Device, !i.shared}
		}
	}
	return append(faults, l.ask(ctx, asked)...)
}

// ask has every device asked, and waits for none beyond preStartMost.
func (l *life) ask(ctx context.Context, asked map[device.ID]Ask) (faults []fault) {
	ctx, cancel := context.WithTimeout(ctx, preStartMost)
	defer cancel()
	answers := make(chan error, len(asked))
	for _, a := range asked {
		go func() { answers <- l.Fit(ctx, a) }() // each returns when ctx is done, and is waited for
	}
	for range asked {
		if err := <-answers; err != nil {
			faults = append(faults, fault{WhyUnfit, err.Error()})
		}
	}
	return faults
}
