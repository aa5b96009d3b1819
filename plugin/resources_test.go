package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// partitioned returns GPUs; the last is MIG-enabled and has MIG devices of
// these profiles.
func partitioned(gpus int, profiles ...string) []device.Status {
	all := statuses(gpus)
	parent := &all[gpus-1].Device
	parent.MIGEnabled = true
	for i, profile := range profiles {
		migDevice := all[gpus-1]
		migDevice.MIGEnabled, migDevice.Profile = false, profile
		migDevice.ID = device.ID(fmt.Sprintf("MIG-%s-%d", profile, i))
		all = append(all, migDevice)
	}
	return all
}

// waitCounts waits for the kubelet's numbers of allocatable devices, such as
// "gpu=1 mig-1g.10gb=2".
func (s *fixture) waitCounts(want string) {
	s.Helper()
	s.wait(want, func(k kubelet.KubeletState) bool {
		for field := range strings.FieldsSeq(want) {
			name, count, _ := strings.Cut(field, "=")
			if fmt.Sprint(k.Resources["nvidia.com/"+name].Allocatable) != count {
				return false
			}
		}
		return true
	})
}

// podRequesting returns a pod of a single container with n devices of a
// resource.
func podRequesting(name, resource string, n int) kubelet.PodSpec {
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{{
		Name:   "main",
		Limits: map[string]int{resource: n},
	}}}
}

func TestResourcesComeAndGo(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.source.GetRules = constantRules(plugin.Rules{MIGStrategy: config.MIGMixed})
		s.inventory.Set(partitioned(2, "1g.10gb", "1g.10gb", "3g.40gb"))
		s.startKubelet()
		s.startPlugin()
		s.waitCounts("gpu=1 mig-1g.10gb=2 mig-3g.40gb=1")
		if err := s.kubelet.RunPod(s.ctx, podRequesting("small", "nvidia.com/mig-1g.10gb", 1)); err != nil {
			t.Error(err)
		}
		s.inventory.Set(partitioned(2, "1g.10gb", "1g.10gb", "2g.20gb"))
		s.waitCounts("gpu=1 mig-1g.10gb=2 mig-3g.40gb=0 mig-2g.20gb=1")
		s.wait("the resource without a device has no capacity", func(k kubelet.KubeletState) bool {
			return k.Resources["nvidia.com/mig-3g.40gb"].Capacity == 0
		})
		s.waitLine(1, "device list is empty")
		s.restart(nil)
		s.waitCounts("gpu=1 mig-1g.10gb=2 mig-2g.20gb=1")
		if r := s.kubelet.Resource("nvidia.com/mig-3g.40gb"); r.Capacity > 0 {
			t.Errorf("withdrawn resource: %+v", r)
		}
		s.inventory.Set(partitioned(2, "3g.40gb"))
		s.waitCounts("gpu=1 mig-1g.10gb=0 mig-2g.20gb=0 mig-3g.40gb=1")
		s.poll("the plugin is ready", func() bool { return s.plugin.Ready() == nil })
		if err := s.plugin.Alive(); err != nil {
			t.Error(err)
		}
	})
}

// rulesSource publishes rules that a test may change.
type rulesSource struct{ current atomic.Pointer[rulesVersion] }

type rulesVersion struct {
	rules   plugin.Rules
	changed chan struct{}
}

func (r *rulesSource) set(rules plugin.Rules) {
	if old := r.current.Swap(&rulesVersion{rules, make(chan struct{})}); old != nil {
		close(old.changed)
	}
}

func (r *rulesSource) get() (plugin.Rules, <-chan struct{}) {
	p := r.current.Load()
	return p.rules, p.changed
}

// allocationSource publishes allocations that a test may change.
type allocationSource struct {
	current atomic.Pointer[allocationVersion]
}

type allocationVersion struct {
	device.Allocations
	changed chan struct{}
}

func newAllocationSource() *allocationSource {
	a := &allocationSource{}
	a.set()
	return a
}

func (a *allocationSource) set(rows ...device.Allocation) {
	slices.SortFunc(rows, device.CompareAllocations)
	old := a.current.Swap(&allocationVersion{device.Allocations{All: rows, Complete: true}, make(chan struct{})})
	if old != nil {
		close(old.changed)
	}
}

func (a *allocationSource) get() (device.Allocations, <-chan struct{}) {
	v := a.current.Load()
	return v.Allocations, v.changed
}

func sharedRules(n int) plugin.Rules {
	return plugin.Rules{Sharing: func(_ string, devices []device.Device) []config.DeviceSharing {
		return slices.Repeat([]config.DeviceSharing{{Replicas: n}}, len(devices))
	}}
}

// TestRejections checks that the pod's status, the log and the hook have the
// ids and the reason of a rejection.
func TestRejections(t *testing.T) {
	onlyOne := func(_ string, devices []device.Device) []config.DeviceSharing {
		return slices.Repeat([]config.DeviceSharing{{Replicas: 2, OnePerContainer: true}}, len(devices))
	}
	for _, row := range []struct {
		name   string
		rules  plugin.Rules
		ids    []string
		reason plugin.RejectReason
		text   string // part of the message
	}{
		{
			"two replicas, one allowed",
			plugin.Rules{Sharing: onlyOne},
			[]string{"GPU-0::0", "GPU-1::1"},
			plugin.RejectTooMany, "GPU-1::1 is shared: a container can request one",
		},
		{"one replica", plugin.Rules{Sharing: onlyOne}, []string{"GPU-0::0"}, "", ""},
		{
			"two of a GPU",
			plugin.Rules{Sharing: sharedRules(2).Sharing, Policy: preferred.Distinct},
			[]string{"GPU-0::0", "GPU-0::1"},
			plugin.RejectSameGPU, "GPU-0::1 is of the same GPU as GPU-0::0",
		},
		{
			"two of two GPUs",
			plugin.Rules{Sharing: sharedRules(2).Sharing, Policy: preferred.Distinct},
			[]string{"GPU-0::0", "GPU-1::1"},
			"", "",
		},
		{"two of a GPU, under the default policy", sharedRules(2), []string{"GPU-0::0", "GPU-0::1"}, "", ""},
		{"no id", plugin.Rules{}, nil, plugin.RejectNoIDs, "requests no device"},
		{"unknown", plugin.Rules{}, []string{"GPU-0::0"}, plugin.RejectUnknown, "GPU-0::0 is unknown"},
		{"unhealthy", plugin.Rules{}, []string{"GPU-2"}, plugin.RejectUnhealthy, "GPU-2 is unhealthy (lost)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newFixture(t)
			s.source.GetRules = constantRules(row.rules)
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
			s.inventory.Set(unhealthy(statuses(3), 2, "lost"))
			s.startKubelet()
			s.startPlugin()
			s.wait("registered", func(k kubelet.KubeletState) bool { return k.Resources[resource].Allocatable > 0 })
			_, err := s.dial(s.socket()).Allocate(s.ctx, allocateRequest(strings.Join(row.ids, " ")))
			if (err != nil) != (row.reason != "") || !strings.Contains(status.Convert(err).Message(), row.text) {
				t.Errorf("Allocate: got error %v", err)
			}
			s.recorded.mu.Lock()
			defer s.recorded.mu.Unlock()
			var reasons []plugin.RejectReason
			for _, r := range s.recorded.rejected {
				if reasons = append(reasons, r.reason); len(r.ids) != len(row.ids) {
					t.Errorf("hook: got ids %q", r.ids)
				}
			}
			if row.reason != "" && !slices.Equal(reasons, []plugin.RejectReason{row.reason}) || row.reason == "" &&
				len(reasons) > 0 {
				t.Errorf("hook: got reasons %q, want %q", reasons, row.reason)
			}
			lines := s.log.matching("container rejected")
			if row.reason != "" && (len(lines) != 1 || !strings.Contains(lines[0], row.text)) {
				t.Errorf("log: got %q", lines)
			}
		})
	}
}

// TestRepeatedRejection checks that each rejection is counted but logged once:
// the kubelet retries a start every few seconds, with the ids in random order.
func TestRepeatedRejection(t *testing.T) {
	s := newFixture(t)
	client := s.watchLists("0! 1!")
	for _, ids := range []string{"GPU-0 GPU-7", "GPU-7 GPU-0", "GPU-0 GPU-7", "GPU-1"} {
		if _, err := client.Allocate(s.ctx, allocateRequest(ids)); err == nil {
			t.Errorf("%s: got no error, want a rejection", ids)
		}
	}
	s.recorded.mu.Lock()
	defer s.recorded.mu.Unlock()
	if len(s.recorded.rejected) != 4 {
		t.Errorf("got %d rejections counted, want 4", len(s.recorded.rejected))
	}
	for _, r := range s.recorded.rejected {
		if r.reason != plugin.RejectUnhealthy {
			t.Errorf("%q: got reason %q, want %q", r.ids, r.reason, plugin.RejectUnhealthy)
		}
	}
	if lines := s.log.matching("container rejected"); len(lines) != 2 { // a line for each fault
		t.Errorf("log: got %q", lines)
	}
}

// TestPreferredFollowsChanges checks that a change of links or devices rebuilds
// the topology.
func TestPreferredFollowsChanges(t *testing.T) {
	s := newFixture(t)
	var links atomic.Pointer[[]device.Link]
	none := []device.Link{}
	links.Store(&none)
	s.source.GetLinks = func() []device.Link { return *links.Load() }
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	s.start(3)
	client := s.dial(s.socket())
	if got := s.preferredIDs(client, 2, "GPU-2 GPU-1 GPU-0"); got != "GPU-0 GPU-2" { // the same NUMA node
		t.Errorf("without links: got %q", got)
	}
	pair := []device.Link{{A: "GPU-1", B: "GPU-2", NVLinks: 12}}
	links.Store(&pair)
	if got := s.preferredIDs(client, 2, "GPU-0 GPU-1 GPU-2"); got != "GPU-1 GPU-2" {
		t.Errorf("with a link: got %q", got)
	}
	s.inventory.Set(unhealthy(statuses(5), 2, "lost")) // five GPUs, so the number of healthy GPUs changes
	s.waitRegistered(4)
	if got := s.preferredIDs(client, 2, "GPU-0 GPU-3 GPU-1"); got != "GPU-1 GPU-3" {
		t.Errorf("with a lost GPU and a new GPU: got %q", got)
	}
	options, err := client.GetDevicePluginOptions(s.ctx, &api.Empty{})
	if err != nil || !options.GetPreferredAllocationAvailable || options.PreStartRequired {
		t.Errorf("options: got %v, %v", options, err)
	}
}

func TestPreStart(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		var rulesSrc rulesSource
		rulesSrc.set(plugin.Rules{})
		var checks []plugin.UsabilityCheck
		var fit atomic.Pointer[error]
		s.source.GetRules = rulesSrc.get
		s.source.Check = func(_ context.Context, a plugin.UsabilityCheck) error {
			checks = append(checks, a)
			if err := fit.Load(); err != nil {
				return *err
			}
			return nil
		}
		s.start(2)
		if err := s.kubelet.RunPod(s.ctx, pod("unasked", 1)); err != nil || len(checks) > 0 {
			t.Errorf("pod: %v, checks %v", err, checks)
		}
		old := s.socket()
		rulesSrc.set(plugin.Rules{PreStartCheck: true})
		s.waitNewSocket(2, old)
		if err := s.kubelet.RunPod(s.ctx, pod("checked", 1)); err != nil || len(checks) != 1 || !checks[0].Exclusive {
			t.Errorf("pod: %v, checks %v", err, checks)
		}
		if err := s.kubelet.DeletePod(pod("checked", 1)); err != nil {
			t.Fatal(err)
		}
		unfit := errors.New("GPU-1 is in use by process 4711")
		fit.Store(&unfit)
		_, err := s.dial(s.socket()).PreStartContainer(s.ctx,
			&api.PreStartContainerRequest{DevicesIds: []string{"GPU-1"}})
		if got := status.Convert(err).Message(); got != "cannot start: GPU-1 is in use by process 4711" {
			t.Errorf("rejection: got %q", got)
		}
	})
}

// TestPreStartTimeout checks that a device that hangs rejects the start after
// two seconds.
func TestPreStartTimeout(t *testing.T) {
	s := newFixture(t)
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	s.source.GetRules = constantRules(plugin.Rules{PreStartCheck: true})
	s.source.Check = func(ctx context.Context, a plugin.UsabilityCheck) error {
		<-ctx.Done()
		return fmt.Errorf("%s does not respond", a.ID)
	}
	s.start(2)
	began := time.Now()
	_, err := s.dial(s.socket()).PreStartContainer(s.ctx,
		&api.PreStartContainerRequest{DevicesIds: []string{"GPU-1", "GPU-0", "GPU-77"}})
	if got := status.Convert(err).Message(); got != "cannot start: GPU-0 does not respond, GPU-1 does not respond" {
		t.Errorf("rejection: got %q", got)
	}
	t.Logf("after %s", time.Since(began))
	s.inventory.Set(unhealthy(statuses(2), 0, "xid_79"))
	s.waitRegistered(1)
	_, err = s.dial(s.socket()).PreStartContainer(s.ctx, &api.PreStartContainerRequest{DevicesIds: []string{"GPU-0"}})
	if got := status.Convert(err).Message(); got != "cannot start: GPU-0 is unhealthy (xid_79)" {
		t.Errorf("rejection: got %q", got)
	}
}

// TestAllocateFollowsTheRules checks that Allocate applies the newest rules,
// per resource.
func TestAllocateFollowsTheRules(t *testing.T) {
	s := newFixture(t)
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	var rulesSrc rulesSource
	strategy := func(all ...response.DeviceListStrategy) plugin.Rules {
		return plugin.Rules{MIGStrategy: config.MIGMixed, Response: response.Options{
			Strategies: all,
			IDStrategy: response.Index,
		}}
	}
	rulesSrc.set(strategy(response.EnvVar))
	s.source.GetRules = rulesSrc.get
	s.inventory.Set(partitioned(2, "1g.10gb", "1g.10gb"))
	s.startKubelet()
	s.startPlugin()
	s.waitCounts("gpu=1 mig-1g.10gb=2")
	if got, err := s.allocate("GPU-0"); err != nil || !slices.Equal(got, []string{"NVIDIA_VISIBLE_DEVICES=0"}) {
		t.Errorf("response: got %q, %v", got, err)
	}
	rulesSrc.set(strategy(response.CDICRI))
	s.poll("the response follows the new rules", func() bool {
		got, err := s.allocate("GPU-0")
		return err == nil && slices.Equal(got, []string{"unexpected"})
	})
}
