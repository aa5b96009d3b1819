package plugin

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/test/bubble"
)

// TestRepeatedRejection: the kubelet repeats a rejected start every few seconds. Each rejection is counted, and logged once a minute.
func TestRepeatedRejection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e := endpointFor("", Rules{}, parseStatuses("0! 1!")...)
		e.Log = slog.New(slog.NewTextHandler(&log, nil))
		s := &server{endpoint: e}
		refused := func(ids ...string) (line string) {
			log.Reset()
			_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
			if err == nil {
				t.Fatalf("%q is accepted", ids)
			}
			return log.String()
		}
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("first rejection logged as %q", line)
		}
		for n := range 5 {
			if line := refused("GPU-1", "GPU-0"); line != "" {
				t.Errorf("repeated after %d s, logged as %q", 10*n, line)
			}
			time.Sleep(10 * time.Second)
		}
		if line := refused("GPU-1"); line == "" {
			t.Error("rejection by a different fault is not logged")
		}
		time.Sleep(10 * time.Second)
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("repeated after a minute, logged as %q", line)
		}
		if line := refused("GPU-0", "GPU-1"); line != "" {
			t.Errorf("repeated at once, logged as %q", line)
		}
		time.Sleep(2 * time.Minute)
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("repeated after two minutes, logged as %q", line)
		}
		if counted, want := len(e.testHooks().rejected), 10; counted != want {
			t.Errorf("%d rejections counted, want %d", counted, want)
		}
	})
}

// TestReasonOfSeveralFaults: the kubelet sends ids in random order, and the counted reason does not depend on the order.
func TestReasonOfSeveralFaults(t *testing.T) {
	e := endpointFor("", Rules{}, parseStatuses("0!")...)
	s := &server{endpoint: e}
	for _, ids := range [][]string{{"GPU-0", "GPU-7"}, {"GPU-7", "GPU-0"}} {
		_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
		if err == nil {
			t.Fatalf("%q is accepted", ids)
		}
	}
	reasons := e.testHooks().rejected
	if len(reasons) != 2 || reasons[0] != RejectUnhealthy || reasons[1] != RejectUnhealthy {
		t.Errorf("counted %q", reasons)
	}
}
