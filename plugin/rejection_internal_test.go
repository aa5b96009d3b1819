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

// TestRepeatedRejection checks that each rejection is counted but logged once a minute: the kubelet retries a start every few seconds.
func TestRepeatedRejection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e := endpointFor("", Rules{}, parseStatuses("0! 1!")...)
		e.Log = slog.New(slog.NewTextHandler(&log, nil))
		s := &server{endpoint: e}
		reject := func(ids ...string) (line string) {
			log.Reset()
			_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
			if err == nil {
				t.Fatalf("%q: got no error, want a rejection", ids)
			}
			return log.String()
		}
		if line := reject("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("first rejection: got log line %q", line)
		}
		for n := range 5 {
			if line := reject("GPU-1", "GPU-0"); line != "" {
				t.Errorf("repeated after %d s: got log line %q", 10*n, line)
			}
			time.Sleep(10 * time.Second)
		}
		if line := reject("GPU-1"); line == "" {
			t.Error("a rejection with a different reason is not logged")
		}
		time.Sleep(10 * time.Second)
		if line := reject("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("repeated after a minute: got log line %q", line)
		}
		if line := reject("GPU-0", "GPU-1"); line != "" {
			t.Errorf("repeated at once: got log line %q", line)
		}
		time.Sleep(2 * time.Minute)
		if line := reject("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("repeated after two minutes: got log line %q", line)
		}
		if counted, want := len(e.testHooks().rejected), 10; counted != want {
			t.Errorf("got %d rejections counted, want %d", counted, want)
		}
	})
}

// TestReasonOfSeveralFaults checks that the counted reason does not depend on the order of ids, which is random in the kubelet.
func TestReasonOfSeveralFaults(t *testing.T) {
	e := endpointFor("", Rules{}, parseStatuses("0!")...)
	s := &server{endpoint: e}
	for _, ids := range [][]string{{"GPU-0", "GPU-7"}, {"GPU-7", "GPU-0"}} {
		_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
		if err == nil {
			t.Fatalf("%q: got no error, want a rejection", ids)
		}
	}
	reasons := e.testHooks().rejected
	if len(reasons) != 2 || reasons[0] != RejectUnhealthy || reasons[1] != RejectUnhealthy {
		t.Errorf("counted reasons: got %q", reasons)
	}
}
