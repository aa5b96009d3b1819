package plugin_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/response"
	"google.golang.org/grpc/status"
)

// TestMPSIsForReplicas checks that an unshared device beside MPS replicas needs
// no daemon.
func TestMPSIsForReplicas(t *testing.T) {
	s := newFixture(t)
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	s.source.GetRules = constantRules(plugin.Rules{
		Sharing:  sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}}),
		Response: response.Options{MPSRoot: "/run/nvidia/mps"},
	})
	s.inventory.Set(statuses(2))
	s.startKubelet()
	s.startPlugin()
	s.waitRegistered(3)
	client := s.dial(s.socket())
	for _, row := range []struct {
		ids  string
		want bool
	}{{"GPU-0::0", true}, {"GPU-1", false}, {"GPU-1 GPU-0::1", true}} {
		got, err := client.Allocate(s.ctx, allocateRequest(row.ids))
		if err != nil {
			t.Fatal(err)
		}
		c := got.ContainerResponses[0]
		if _, has := c.Envs["CUDA_MPS_PIPE_DIRECTORY"]; has != row.want || (len(c.Mounts) > 0) != row.want {
			t.Errorf("%q: got environment %v, mounts %v", row.ids, c.Envs, c.Mounts)
		}
	}
}

// TestReplicasWithoutTheMPSDaemon checks that only replicas need the daemon.
func TestReplicasWithoutTheMPSDaemon(t *testing.T) {
	s := newFixture(t)
	s.source.GetRules = constantRules(plugin.Rules{
		Sharing:   sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}}),
		MPSErrors: map[string]string{resource: "no daemon"},
	})
	client := s.watchLists("0 1")
	client.want("at first", "GPU-0::0! GPU-0::1! GPU-1")
	_, err := client.Allocate(s.ctx, allocateRequest("GPU-0::1"))
	if got := status.Convert(err).Message(); got != "cannot allocate: GPU-0::1 is unhealthy (mps_daemon)" {
		t.Errorf("Allocate: got %q", got)
	}
}

func TestMPSDaemon(t *testing.T) {
	dir := shortDir(t)
	control := filepath.Join(dir, "control")
	wantReady := func(event string, want bool) {
		t.Helper()
		if err := plugin.CheckMPSDaemon(dir); (err == nil) != want {
			t.Errorf("%s: got error %v, want ready: %t", event, err, want)
		}
	}
	wantReady("no control", false)
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantReady("a file", false)
	os.Remove(control) //nolint:errcheck // the next step fails otherwise
	if err := syscall.Mkfifo(control, 0o600); err != nil {
		t.Fatal(err)
	}
	wantReady("a pipe without a reader", false)
	reader, err := os.OpenFile(control, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantReady("a pipe with a reader", true)
	reader.Close()     //nolint:errcheck // end of the test
	os.Remove(control) //nolint:errcheck // the next step fails otherwise
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: control})
	if err != nil {
		t.Fatal(err)
	}
	wantReady("a socket", true)
	listener.SetUnlinkOnClose(false)
	listener.Close() //nolint:errcheck // end of the test
	wantReady("a socket without a listener", false)
}
