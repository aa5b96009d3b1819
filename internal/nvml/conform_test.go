package nvml

import (
	"testing"

	"github.com/podgauge/podgauge/test/helpers/devicetest"
)

func TestBackendConforms(t *testing.T) { devicetest.TestBackend(t, newFixture(t, Options{}).Backend) }

func TestPartitionedBackendConforms(t *testing.T) {
	devicetest.TestBackend(t, newFixture(t, Options{}, partitionedGPU...).Backend)
}
