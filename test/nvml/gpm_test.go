package nvmltest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// timedSample is a GPM sample with its earliest and latest possible time.
type timedSample struct {
	nvml.GpmSample
	notBefore, notAfter time.Time
}

// takeSample takes a sample of a GPU or MIG device or, with gi ≥ 0, of a GPU instance.
func (n *testNode) takeSample(d nvml.Device, gi int) timedSample {
	n.Helper()
	s, ret := n.GpmSampleAlloc()
	n.want(nvml.SUCCESS, ret)
	taken := timedSample{GpmSample: s, notBefore: time.Now()}
	if gi < 0 {
		ret = s.Get(d)
	} else {
		ret = s.MigGet(d, gi)
	}
	taken.notAfter = time.Now()
	n.want(nvml.SUCCESS, ret)
	return taken
}

// metrics computes metrics from two samples.
func (n *testNode) metrics(from, to timedSample, ids ...nvml.GpmMetricId) []nvml.GpmMetric {
	n.Helper()
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(ids)), Sample1: from.GpmSample, Sample2: to.GpmSample}
	for i, id := range ids {
		get.Metrics[i].MetricId = uint32(id)
	}
	n.want(nvml.SUCCESS, n.GpmMetricsGet(&get))
	return get.Metrics[:len(ids)]
}

// waitAfter waits until the given time has passed since a sample, for a window of that length.
func (n *testNode) waitAfter(s timedSample, while time.Duration) {
	n.Helper()
	n.waitUntil("the window is over", func() bool { return time.Since(s.notAfter) > while })
}

// wantNear checks a metric's value.
func (n *testNode) wantNear(m nvml.GpmMetric, want, slack float64) {
	n.Helper()
	n.want(nvml.SUCCESS, nvml.Return(m.NvmlReturn))
	if math.Abs(m.Value-want) > slack {
		n.Errorf("metric %d is %f, want %f", m.MetricId, m.Value, want)
	}
}

func TestGPM(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		// A wave with a period of 2 ms. Its mean over longer windows is the middle.
		n.setup("gpu 1 metric 1-2 40", "gpu 1 metric 2 20~60/0.002s", "gpu 1 metric 20 100+1000/s", fmt.Sprintf("epoch %d", time.Now().Unix()),
			"gpu 1 metric 5 none", "fail metric:3 gpu 1 UNKNOWN")
		first := n.takeSample(n.gpu(1), -1)
		n.waitAfter(first, 100*time.Millisecond)
		last := n.takeSample(n.gpu(1), -1)
		got := n.metrics(first, last, nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_INTEGER_UTIL,
			nvml.GPM_METRIC_ANY_TENSOR_UTIL, nvml.GPM_METRIC_FP16_UTIL, nvml.GPM_METRIC_C2C_TOTAL_TX_PER_SEC, nvml.GPM_METRIC_PCIE_TX_PER_SEC)
		n.wantNear(got[0], 40, 1e-6)
		n.wantNear(got[1], 40, 1)
		n.want(nvml.ERROR_UNKNOWN, nvml.Return(got[2].NvmlReturn))
		n.wantNear(got[3], 0, 0)
		n.want(nvml.ERROR_NOT_SUPPORTED, nvml.Return(got[4].NvmlReturn))
		n.wantNear(got[5], 0, 0)
		n.want(nvml.ERROR_NOT_SUPPORTED, nvml.Return(got[6].NvmlReturn))
		// The mean of a rising value is the value at the middle of the window.
		middle := first.notBefore.Add(last.notAfter.Sub(first.notBefore) / 2)
		n.wantNear(got[7], 100+1000*middle.Sub(time.Unix(testEpoch(n), 0)).Seconds(), 100)

		// A changed line is weighted with the time before the change.
		n.setLines("gpu 1 metric 1 80")
		n.takeSample(n.gpu(1), -1)
		n.waitAfter(last, last.notAfter.Sub(first.notBefore))
		end := n.takeSample(n.gpu(1), -1)
		whole := n.metrics(first, end, nvml.GPM_METRIC_GRAPHICS_UTIL)[0]
		if whole.Value < 45 || whole.Value > 75 {
			n.Errorf("mean of 40, then 80, is %f", whole.Value)
		}
	})
}

// testEpoch returns the epoch of the scenario.
func testEpoch(n *testNode) int64 {
	n.Helper()
	n.scenario.mu.Lock()
	defer n.scenario.mu.Unlock()
	for _, line := range n.scenario.lines {
		var epoch int64
		if _, err := fmt.Sscanf(line, "epoch %d", &epoch); err == nil {
			return epoch
		}
	}
	n.Fatal("scenario lacks an epoch")
	return 0
}

func TestGPMOfInstances(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 mig_mode 1", "gpu 0 slice 0 1c.3g.40gb gi 2 ci 0", "gpu 0 slice 1 2c.3g.40gb gi 2 ci 1", "gpu 0 slice 2 1g.10gb gi 7 ci 0",
			"gpu 0 metric 2 10", "gpu 0 metric 2/7 70")
		gpu := n.gpu(0)
		type entity struct {
			device nvml.Device
			gi     int
		}
		entities := map[entity]float64{{gpu, -1}: 10, {gpu, 2}: 10, {gpu, 7}: 70, {n.migDevice(gpu, 1), -1}: 10, {n.migDevice(gpu, 2), -1}: 70}
		firsts := map[entity]timedSample{}
		for e := range entities {
			firsts[e] = n.takeSample(e.device, e.gi)
		}
		for e, want := range entities {
			n.waitAfter(firsts[e], 10*time.Millisecond)
			n.wantNear(n.metrics(firsts[e], n.takeSample(e.device, e.gi), nvml.GPM_METRIC_SM_UTIL)[0], want, 1e-6)
		}
		other, ret := n.GpmSampleAlloc()
		n.want(nvml.SUCCESS, ret)
		n.want(nvml.ERROR_INVALID_ARGUMENT, other.MigGet(gpu, 5))

		// A recreated instance has new counters, so that the mean over both is wrong.
		old := firsts[entity{gpu, 7}]
		n.setLines("gpu 0 slice 2 1g.10gb gi 7 ci 0 uuid MIG-another")
		if m := n.metrics(old, n.takeSample(gpu, 7), nvml.GPM_METRIC_SM_UTIL)[0]; math.Abs(m.Value-70) < 1 {
			n.Error("a recreated instance continues the counters")
		}
	})
}

func TestGPMSamples(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 1 gpm 0", "gpu 2 gpm none")
		first, other := n.takeSample(n.gpu(0), -1), n.takeSample(n.gpu(3), -1)
		if got := n.readCalls().GPMSamples(); got != 2 {
			n.Errorf("%d samples are allocated, want 2", got)
		}
		empty, ret := n.GpmSampleAlloc()
		n.want(nvml.SUCCESS, ret)
		for name, pair := range map[string][2]nvml.GpmSample{
			"two GPUs": {first.GpmSample, other.GpmSample}, "not taken": {first.GpmSample, empty}, "equal": {first.GpmSample, first.GpmSample},
		} {
			get := nvml.GpmMetricsGetType{NumMetrics: 1, Sample1: pair[0], Sample2: pair[1]}
			if ret := n.GpmMetricsGet(&get); ret != nvml.ERROR_INVALID_ARGUMENT {
				n.Errorf("samples %s: %v", name, ret)
			}
		}
		n.want(nvml.ERROR_NOT_SUPPORTED, empty.Get(n.gpu(1)))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(n.gpu(2).GpmQueryDeviceSupport()))
		for _, s := range []nvml.GpmSample{first, other, empty} {
			n.want(nvml.SUCCESS, s.Free())
			n.want(nvml.ERROR_INVALID_ARGUMENT, s.Free())
		}
		n.want(nvml.ERROR_INVALID_ARGUMENT, first.Get(n.gpu(0)))
		calls := n.readCalls()
		if calls.GPMSamples() != 0 || calls.Count("nvmlGpmMetricsGet", 0) != 1 || calls.Count("nvmlGpmSampleGet", 0) != 2 {
			n.Errorf("%d samples are allocated; GPU 0 has %d samples and %d computations", calls.GPMSamples(), calls.Count("nvmlGpmSampleGet", 0), calls.Count("nvmlGpmMetricsGet", 0))
		}
	})
}
