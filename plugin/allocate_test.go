package plugin_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/response"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// formatResponse formats a container's environment and device nodes.
func formatResponse(c *api.ContainerAllocateResponse) string {
	var all []string
	for name, value := range c.Envs {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	for _, d := range c.Devices {
		node := d.ContainerPath + ":" + d.Permissions
		if d.HostPath != d.ContainerPath {
			node = d.HostPath + ":" + node
		}
		all = append(all, node)
	}
	if len(c.Mounts)+len(c.Annotations)+len(c.CdiDevices) > 0 {
		all = append(all, "unexpected")
	}
	return strings.Join(all, " ")
}

// allocate calls Allocate with a request for each container; spaces separate
// ids.
func (s *fixture) allocate(containers ...string) (lines []string, err error) {
	s.Helper()
	got, err := s.dial(s.socket()).Allocate(s.ctx, allocateRequest(containers...))
	for _, c := range got.GetContainerResponses() {
		lines = append(lines, formatResponse(c))
	}
	return lines, err
}

func allocateRequest(containers ...string) *api.AllocateRequest {
	r := &api.AllocateRequest{}
	for _, ids := range containers {
		r.ContainerRequests = append(r.ContainerRequests,
			&api.ContainerAllocateRequest{DevicesIds: strings.Fields(ids)})
	}
	return r
}

func TestAllocate(t *testing.T) {
	const env = "NVIDIA_VISIBLE_DEVICES="
	s := newFixture(t)
	s.source.GetRules = constantRules(plugin.Rules{Response: response.Options{DeviceSpecs: true}})
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	s.inventory.Set(unhealthy(unhealthy(statuses(11), 2, "xid_79"), 3, "lost"))
	s.startKubelet()
	s.startPlugin()
	s.waitRegistered(9)
	for _, row := range []struct {
		name       string
		containers []string
		want       []string // by container
		err        string   // reason of the rejection
	}{
		{name: "one", containers: []string{"GPU-1"}, want: []string{env + "GPU-1 /dev/nvidiactl:rw /dev/nvidia1:rw"}},
		{
			name: "in the order of the node, not of names", containers: []string{"GPU-10 GPU-9"},
			want: []string{env + "GPU-9,GPU-10 /dev/nvidiactl:rw /dev/nvidia9:rw /dev/nvidia10:rw"},
		},
		{
			name: "two containers", containers: []string{"GPU-1", "GPU-0"},
			want: []string{
				env + "GPU-1 /dev/nvidiactl:rw /dev/nvidia1:rw",
				env + "GPU-0 /dev/nvidiactl:rw /dev/nvidia0:rw",
			},
		},
		{name: "no container"},
		{name: "unknown", containers: []string{"GPU-77"}, err: "cannot allocate: GPU-77 is unknown"},
		{name: "no name", containers: []string{"::1"}, err: "cannot allocate: ::1 is unknown"},
		{name: "part of a name", containers: []string{"GPU"}, err: "cannot allocate: GPU is unknown"},
		{name: "unhealthy", containers: []string{"GPU-2"}, err: "cannot allocate: GPU-2 is unhealthy (xid_79)"},
		{
			name: "a replica of an unshared GPU", containers: []string{"GPU-1::0"},
			err: "cannot allocate: GPU-1::0 is unknown",
		},
		{
			name: "all wrong ids", containers: []string{"GPU-3 GPU-77 GPU-0 GPU-2"},
			err: "cannot allocate: GPU-2 is unhealthy (xid_79), GPU-3 is unhealthy (lost), GPU-77 is unknown",
		},
		{
			name: "in all containers", containers: []string{"GPU-77", "GPU-0", "GPU-2"},
			err: "cannot allocate: GPU-2 is unhealthy (xid_79), GPU-77 is unknown",
		},
		{name: "nothing", containers: []string{""}, err: "cannot allocate: a container requests no device"},
	} {
		got, err := s.allocate(row.containers...)
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
		if status.Convert(err).Message() != row.err || err != nil && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: got error %v, want %q", row.name, err, row.err)
		}
		s.wantAllocation(row.name, row.containers, row.err)
	}
}

// constantRules returns rules that never change.
func constantRules(r plugin.Rules) func() (plugin.Rules, <-chan struct{}) {
	return func() (plugin.Rules, <-chan struct{}) { return r, nil }
}

// wantAllocation checks the events of the single call since the last check.
func (s *fixture) wantAllocation(name string, containers []string, rejection string) {
	s.Helper()
	s.poll("the hooks have the call", func() bool {
		s.recorded.mu.Lock()
		defer s.recorded.mu.Unlock()
		return len(s.recorded.allocateErrs) == 1 && (rejection != "" || len(s.recorded.allocated) == 1)
	})
	s.recorded.mu.Lock()
	defer s.recorded.mu.Unlock()
	var ids []device.AdvertisedID
	for id := range strings.FieldsSeq(strings.Join(containers, " ")) {
		ids = append(ids, device.AdvertisedID(id))
	}
	allocated, rejected, served := s.recorded.allocated, s.recorded.rejected, s.recorded.allocateErrs[0]
	ok := len(rejected) == 0 && served == nil
	if rejection != "" {
		ids = nil
		ok = len(rejected) == 1 && rejected[0].err.Error() == rejection && served != nil
	}
	if !ok || !slices.Equal(slices.Concat(allocated...), ids) {
		s.Errorf("%s: hooks: got allocated %q, rejected %v, served %v", name, allocated, rejected, served)
	}
	s.recorded.allocated, s.recorded.rejected, s.recorded.allocateErrs = nil, nil, nil
}

func pod(name string, n int) kubelet.PodSpec {
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{{
		Name:   "main",
		Limits: map[string]int{resource: n},
	}}}
}

// TestPodStatusHasTheRejection checks that the newest statuses decide: the
// kubelet may request a device before it knows of the failure.
func TestPodStatusHasTheRejection(t *testing.T) {
	for _, row := range []struct {
		name      string
		inventory []device.Status
		want      string
	}{
		{"unhealthy", unhealthy(statuses(1), 0, "xid_79"), "cannot allocate: GPU-0 is unhealthy (xid_79)"},
		{"unknown", []device.Status{}, "cannot allocate: GPU-0 is unknown"},
	} {
		t.Run(row.name, func(t *testing.T) {
			eachVersion(t, func(s *fixture) {
				var inventory atomic.Pointer[[]device.Status]
				good := statuses(1)
				inventory.Store(&good)
				// without a wake-up
				s.source.GetStatuses = func() ([]device.Status, <-chan struct{}) { return *inventory.Load(), nil }
				s.startKubelet()
				s.startPlugin()
				s.waitRegistered(1)
				inventory.Store(&row.inventory)
				err := s.kubelet.RunPod(s.ctx, pod("unlucky", 1))
				rejected := (*kubelet.AdmissionError)(nil)
				if !errors.As(err, &rejected) || rejected.Reason != "UnexpectedAdmissionError" ||
					!strings.Contains(rejected.Message, row.want) {
					s.Errorf("pod: got %v, want %q", err, row.want)
				}
				s.recorded.mu.Lock()
				defer s.recorded.mu.Unlock()
				if len(s.recorded.allocated) > 0 || len(s.recorded.rejected) != 1 {
					s.Errorf("hooks: got allocated %q, rejected %v", s.recorded.allocated, s.recorded.rejected)
				}
			})
		})
	}
}
