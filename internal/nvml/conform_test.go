package nvml

import (
	"testing"

	"github.com/podgauge/podgauge/internal/device/devicetest"
)

func TestBackendConforms(t *testing.T) { devicetest.Conform(t, newStage(t, Options{}).Backend) }

func TestPartitionedBackendConforms(t *testing.T) {
	devicetest.Conform(t, newStage(t, Options{}, partitioned...).Backend)
}
