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
		e := on("", Rules{}, board("0! 1!")...)
		e.Log = slog.New(slog.NewTextHandler(&log, nil))
		e.Trace.Refused = func(string, []device.OfferedID, Why, error) { counted++ }
		l := &life{endpoint: e}
		refused := func(ids ...string) (line string) {
			log.Reset()
			_, err := l.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
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
	var r refusals
	now := time.Unix(1e9, 0)
	ids := func(n int) []device.OfferedID { return []device.OfferedID{device.OfferedID(fmt.Sprint("GPU-", n))} }
	for n := range 3 * mostRefusals {
		if _, say := r.met("start", WhyUnfit, ids(n), now.Add(time.Duration(n))); !say {
			t.Fatalf("refusal %d is not said", n)
		}
	}
	if len(r.said) > mostRefusals {
		t.Errorf("%d are kept", len(r.said))
	}
	if _, say := r.met("start", WhyUnfit, ids(3*mostRefusals-1), now.Add(time.Second)); say {
		t.Error("the newest is forgotten")
	}
	for _, other := range []func() (int, bool){
		func() (int, bool) { return r.met("allocate", WhyUnfit, ids(3*mostRefusals-1), now) },
		func() (int, bool) { return r.met("start", WhyUnhealthy, ids(3*mostRefusals-1), now) },
	} {
		if _, say := other(); !say {
			t.Error("another refusal of the same id is not said")
		}
	}
}

// The kubelet sends ids in random order, and what is counted does not depend on it.
func TestTheReasonOfSeveral(t *testing.T) {
	var whys []Why
	e := on("", Rules{}, board("0!")...)
	e.Trace.Refused = func(_ string, _ []device.OfferedID, why Why, _ error) { whys = append(whys, why) }
	l := &life{endpoint: e}
	for _, ids := range [][]string{{"GPU-0", "GPU-7"}, {"GPU-7", "GPU-0"}} {
		_, err := l.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
		if err == nil {
			t.Fatalf("%q is not refused", ids)
		}
	}
	if len(whys) != 2 || whys[0] != WhyUnhealthy || whys[1] != WhyUnhealthy {
		t.Errorf("counted is %q", whys)
	}
}
