// Package peers measures dcgm-exporter's mapping and rendering. test/observability/peers/build copies this file into dcgm-exporter's tree, whose internal
// packages are only importable there.
package peers

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/dcgm-exporter/internal/pkg/appconfig"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/collector"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/counters"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/deviceinfo"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/nvmlprovider"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/rendermetrics"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/transformation"
	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

const (
	gpuCount     = 8
	counterCount = 25
)

// TestMapping runs PEERS_ROUNDS scrapes and prints CPU time in ns, memory allocations and series of each scrape.
func TestMapping(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("PEERS_ROUNDS"))
	if err != nil {
		t.Fatal(err)
	}
	config := &appconfig.Config{
		Kubernetes: true, KubernetesGPUIdType: appconfig.GPUUID, PodResourcesKubeletSocket: os.Getenv("PEERS_SOCKET"),
		KubernetesVirtualGPUs: os.Getenv("PEERS_SHARED") != "",
	}
	if config.KubernetesVirtualGPUs {
		if err := nvmlprovider.Initialize(); err != nil {
			t.Fatal(err)
		}
	}
	mapper := transformation.NewPodMapper(config)
	for range rounds {
		time.Sleep(1100 * time.Millisecond) // the interval of podgauge's scrapes
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := cpuTime(t)
		metrics := newMetrics()
		if err := mapper.Process(metrics, gpus{}); err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		if err := rendermetrics.RenderGroup(&body, dcgm.FE_GPU, metrics); err != nil {
			t.Fatal(err)
		}
		cpu := cpuTime(t) - begin
		runtime.ReadMemStats(&after)
		series := 0
		for _, m := range metrics {
			series += len(m)
		}
		fmt.Println("scrape", cpu.Nanoseconds(), after.Mallocs-before.Mallocs, series, bytes.Count(body.Bytes(), []byte(`pod="`)))
	}
}

// newMetrics returns metrics as toMetric creates them from DCGM's responses.
func newMetrics() collector.MetricsByCounter {
	metrics := collector.MetricsByCounter{}
	for i := range counterCount {
		c := counters.Counter{FieldID: dcgm.Short(100 + i), FieldName: fmt.Sprintf("DCGM_FI_DEV_COUNTER_%d", i), PromType: "gauge", Help: "A counter of the peers' comparison."}
		for gpu := range gpuCount {
			metrics[c] = append(metrics[c], collector.Metric{
				Counter: c, Value: strconv.Itoa(1000*i + gpu), UUID: "UUID", GPU: strconv.Itoa(gpu), GPUUUID: uuid(gpu),
				GPUDevice: fmt.Sprintf("nvidia%d", gpu), GPUModelName: "NVIDIA H100 80GB HBM3", GPUPCIBusID: fmt.Sprintf("00000000:%02x:00.0", 0x10+gpu),
				Hostname: "node-a", Labels: map[string]string{"DCGM_FI_DRIVER_VERSION": "580.95.05"}, Attributes: map[string]string{},
			})
		}
	}
	return metrics
}

// uuid returns the UUID of a GPU of the stand-in.
func uuid(gpu int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", gpu) }

// gpus provides the device information of whole GPUs.
type gpus struct{ deviceinfo.Provider }

func (gpus) GPUCount() uint { return gpuCount }

func (gpus) GPU(i uint) deviceinfo.GPUInfo {
	return deviceinfo.GPUInfo{DeviceInfo: dcgm.Device{GPU: i, UUID: uuid(int(i))}}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
