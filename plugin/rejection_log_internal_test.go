package plugin

import (
	"bytes"
	"fmt"
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
		counted := 0
		e := endpointFor("", Rules{}, parseStatuses("0! 1!")...)
		e.Log = slog.New(slog.NewTextHandler(&log, nil))
		e.Hooks.OnRejected = func(string, []device.AdvertisedID, RejectReason, error) { counted++ }
		s := &server{endpoint: e}
		refused := func(ids ...string) (line string) {
			log.Reset()
			_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
			if err == nil {
				t.Fatalf("%q is not refused", ids)
			}
			return log.String()
		}
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "ids=") || strings.Contains(line, "unsaid") {
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
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "unsaid=5") {
			t.Errorf("after a minute it says %q", line)
		}
		if line := refused("GPU-0", "GPU-1"); line != "" {
			t.Errorf("right after that it says %q", line)
		}
		time.Sleep(2 * time.Minute)
		if line := refused("GPU-0", "GPU-1"); !strings.Contains(line, "unsaid=1") {
			t.Errorf("after two minutes more it says %q", line)
		}
		if want := 10; counted != want {
			t.Errorf("%d refusals are counted; want %d", counted, want)
		}
	})
}

// Whoever may ask for anything does not fill the memory.
func TestRefusalsAreForgotten(t *testing.T) {
	var r rejectionLog
	now := time.Unix(1e9, 0)
	ids := func(n int) []device.AdvertisedID {
		return []device.AdvertisedID{device.AdvertisedID(fmt.Sprint("GPU-", n))}
	}
	for n := range 3 * maxRejections {
		if _, say := r.record("start", RejectUnusable, ids(n), now.Add(time.Duration(n))); !say {
			t.Fatalf("refusal %d is not said", n)
		}
	}
	if len(r.entries) > maxRejections {
		t.Errorf("%d are kept", len(r.entries))
	}
	if _, say := r.record("start", RejectUnusable, ids(3*maxRejections-1), now.Add(time.Second)); say {
		t.Error("the newest is forgotten")
	}
	for _, other := range []func() (int, bool){
		func() (int, bool) { return r.record("allocate", RejectUnusable, ids(3*maxRejections-1), now) },
		func() (int, bool) { return r.record("start", RejectUnhealthy, ids(3*maxRejections-1), now) },
	} {
		if _, say := other(); !say {
			t.Error("another refusal of the same id is not said")
		}
	}
}

// The kubelet sends ids in random order, and what is counted does not depend on it.
func TestTheReasonOfSeveral(t *testing.T) {
	var reasons []RejectReason
	e := endpointFor("", Rules{}, parseStatuses("0!")...)
	e.Hooks.OnRejected = func(_ string, _ []device.AdvertisedID, reason RejectReason, _ error) {
		reasons = append(reasons, reason)
	}
	s := &server{endpoint: e}
	for _, ids := range [][]string{{"GPU-0", "GPU-7"}, {"GPU-7", "GPU-0"}} {
		_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
		if err == nil {
			t.Fatalf("%q is not refused", ids)
		}
	}
	if len(reasons) != 2 || reasons[0] != RejectUnhealthy || reasons[1] != RejectUnhealthy {
		t.Errorf("counted is %q", reasons)
	}
}
