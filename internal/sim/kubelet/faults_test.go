package kubelet_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

func TestRegisterFaults(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	p := servePlugin(t, k)
	k.SetFaults(kubelet.Faults{RegisterErr: status.Error(codes.Unavailable, "try again")})
	if err := p.register(t.Context(), k); status.Code(err) != codes.Unavailable {
		t.Errorf("rejected registration: got %v, want code Unavailable", err)
	}
	release := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldRegister: release})
	err := callAndCancel(t, func(ctx context.Context) error { return p.register(ctx, k) }, func() {
		waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Calls["Register"] == 2 })
	})
	if status.Code(err) != codes.Canceled {
		t.Errorf("blocked registration: got %v, want code Canceled", err)
	}
	// the kubelet has canceled it as well
	waitForState(t, k, func(s kubelet.KubeletState) bool { return len(s.Registrations) == 2 })
	var registered sync.WaitGroup
	registered.Go(func() {
		if err := p.register(t.Context(), k); err != nil {
			t.Errorf("released registration: got %v, want nil", err)
		}
	})
	close(release)
	registered.Wait()
	k.SetFaults(kubelet.Faults{})
	waitForState(t, k, func(s kubelet.KubeletState) bool {
		return len(s.Registrations) == 3 &&
			s.Registrations[2].Err == nil
	})
}

// callAndCancel makes a call that blocks, and cancels the call after its
// arrival.
func callAndCancel(t *testing.T, call func(context.Context) error, arrived func()) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	arrived()
	select {
	case err := <-ended:
		t.Errorf("call: got %v, want it to block", err)
		return err
	default:
	}
	cancel()
	return <-ended
}

func TestListFaults(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	client := lister(t, k)
	k.SetFaults(kubelet.Faults{ListErr: errors.New("out of lists")})
	_, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
	if status.Code(err) != codes.Unknown || status.Convert(err).Message() != "out of lists" {
		t.Errorf("List: got %v, want code Unknown, out of lists", err)
	}
	release := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldList: release})
	listCall := func(ctx context.Context) error {
		_, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
		return err
	}
	err = callAndCancel(t, listCall, func() {
		waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Calls["List"] == 2 })
	})
	if status.Code(err) != codes.Canceled {
		t.Errorf("blocked List: got %v, want code Canceled", err)
	}
	if _, err := client.GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{}); err != nil {
		t.Errorf("GetAllocatableResources during the blocked List: got %v, want nil", err)
	}
	close(release)
	if _, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{}); err != nil {
		t.Errorf("released List: got %v, want nil", err)
	}
	const size = 5 << 20
	k.SetFaults(kubelet.Faults{ListBytes: size})
	resp, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
	if got := proto.Size(resp); err != nil || got < size || got > size*5/4 {
		t.Errorf("padded List: got %d bytes, error %v, want about 5 MiB", got, err)
	}
	if s := k.State(); s.Calls["List"] != 4 || s.Calls["GetAllocatableResources"] != 1 {
		t.Errorf("got calls %v, want 4 of List and 1 of GetAllocatableResources", s.Calls)
	}
}

func TestCutStreams(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	registerPlugin(t, k, "a")
	k.CutStreams("nvidia.com/other")
	k.CutStreams(gpuResource)
	waitForState(t, k, func(s kubelet.KubeletState) bool {
		r := s.Resources[gpuResource]
		return r.Allocatable == 0 && r.Capacity == 1 && len(r.Sockets) == 0
	})
}
