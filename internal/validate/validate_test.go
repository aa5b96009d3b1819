package validate_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/validate"
	"github.com/podgauge/podgauge/test/bubble"
)

// partialBackend is hardware with one GPU that cannot be described.
type partialBackend struct{ device.Backend }

func (p partialBackend) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := p.Backend.Devices(ctx)
	return devices, errors.Join(err, errors.New("GPU 7: GPU is lost"))
}

// TestLostGPU checks that a GPU that cannot be described does not affect the
// other GPUs.
func TestLostGPU(t *testing.T) {
	driver := partialBackend{sim.NewMachine(metric.Metrics(), 8, time.Now)}
	var out strings.Builder
	err := validate.Preview(t.Context(), driver, config.Settings{MIGStrategy: config.MIGNone}, &out)
	if err != nil || !strings.Contains(out.String(), "note: GPU 7: GPU is lost\n") || !strings.Contains(out.String(), "nvidia.com/gpu  8") {
		t.Errorf("got error %v, output\n%s", err, &out)
	}
}

// hangingBackend is hardware whose driver hangs until the channel is closed.
type hangingBackend struct {
	device.Backend
	hang chan struct{}
}

func (h hangingBackend) Devices(context.Context) ([]device.Device, error) {
	<-h.hang
	return nil, nil
}

// TestHungDriver checks that validate ends.
func TestHungDriver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		err := validate.Preview(t.Context(), hangingBackend{hang: hang}, config.Settings{}, io.Discard)
		if err == nil || err.Error() != "the driver does not respond" {
			t.Errorf("got error %v", err)
		}
	})
}
