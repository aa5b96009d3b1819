package plugin

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestServerStopsAfterAFailure stops the gRPC server, which no kubelet can do:
// watch ends, and stop returns.
func TestServerStopsAfterAFailure(t *testing.T) {
	o := Options{
		Dir: background.Dir(t), Log: slog.New(slog.DiscardHandler), Devices: &device.Inventory{},
		Resources: &pubsub.Value[[]Resource]{},
	}
	s, err := startServer(t.Context(), newResourceState(o, "nvidia.com/gpu", &folderWatch{}), "own.sock")
	require.NoError(t, err)
	s.grpcServer.Stop()
	if _, err := s.watch(t.Context(), socketID{}); err == nil || !strings.HasPrefix(err.Error(), "serve: ") {
		t.Errorf("watch: got error %v", err)
	}
	s.stop()
}
