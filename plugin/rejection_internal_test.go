package plugin

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The kubelet tries a refused start again every few seconds. Each is counted; the
// log has it at once, and then once a minute.
func TestARefusalThatIsMetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e := endpointFor("", Rules{}, parseStatuses("0! 1!")...)
		e.Log = slog.New(slog.NewTextHandler(&log, nil))
		s := &server{endpoint: e}
		refused := func(ids ...string) (line string) {
			log.Reset()
			_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
			if err == nil {
				t.Fatalf("%q is not refused", ids)
			}
			return log.String()
		}
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("at first it says %q", line)
		}
		for n := range 5 {
			if line := refused("GPU-1", "GPU-0"); line != "" {
				t.Errorf("after %d s it says %q", 10*n, line)
			}
			time.Sleep(10 * time.Second)
		}
		if line := refused("GPU-0"); line == "" {
			t.Error("it does not say that others are refused")
		}
		time.Sleep(10 * time.Second)
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("after a minute it says %q", line)
		}
		if line := refused("GPU-0", "GPU-1"); line != "" {
			t.Errorf("right after that it says %q", line)
		}
		time.Sleep(2 * time.Minute)
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") {
			t.Errorf("after two minutes more it says %q", line)
		}
		if counted, want := len(e.testHooks().rejected), 10; counted != want {
			t.Errorf("%d refusals are counted; want %d", counted, want)
		}
	})
}

// TestRejectionsAreLoggedApart: a rejection is the same only by operation, reason and ids together.
func TestRejectionsAreLoggedApart(t *testing.T) {
	r, now := newRejectionLog(), time.Unix(1e9, 0)
	for _, c := range []struct {
		operation string
		reason    RejectReason
		ids       []device.AdvertisedID
		want      bool
	}{
		{"start", RejectUnusable, []device.AdvertisedID{"GPU-0", "GPU-1"}, true},
		{"start", RejectUnusable, []device.AdvertisedID{"GPU-1", "GPU-0"}, false},
		{"allocate", RejectUnusable, []device.AdvertisedID{"GPU-0", "GPU-1"}, true},
		{"start", RejectUnhealthy, []device.AdvertisedID{"GPU-0", "GPU-1"}, true},
		{"start", RejectUnusable, []device.AdvertisedID{"GPU-0"}, true},
	} {
		if got := r.allow(c.operation, c.reason, c.ids, now); got != c.want {
			t.Errorf("%s %s %q: logged: %t, want %t", c.operation, c.reason, c.ids, got, c.want)
		}
	}
}

// The kubelet sends ids in random order, and what is counted does not depend on it.
func TestTheReasonOfSeveral(t *testing.T) {
	e := endpointFor("", Rules{}, parseStatuses("0!")...)
	s := &server{endpoint: e}
	for _, ids := range [][]string{{"GPU-0", "GPU-7"}, {"GPU-7", "GPU-0"}} {
		_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
		if err == nil {
			t.Fatalf("%q is not refused", ids)
		}
	}
	reasons := e.testHooks().rejected
	if len(reasons) != 2 || reasons[0] != RejectUnhealthy || reasons[1] != RejectUnhealthy {
		t.Errorf("counted is %q", reasons)
	}
}
