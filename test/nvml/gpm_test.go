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

func (n *testNode) takeSample(d nvml.Device) timedSample {
	n.Helper()
	s, ret := n.GpmSampleAlloc()
	n.want(nvml.SUCCESS, ret)
	taken := timedSample{GpmSample: s, notBefore: time.Now()}
	n.want(nvml.SUCCESS, s.Get(d))
	taken.notAfter = time.Now()
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
		epoch := time.Now().Truncate(time.Second)
		// A wave with a period of 2 ms. Its mean over longer windows is the middle.
		n.setup("gpu 1 metric 1-2 40", "gpu 1 metric 2 20~60/0.002s", "gpu 1 metric 20 100+1000/s", fmt.Sprintf("epoch %d", epoch.Unix()),
			"gpu 1 metric 5 none", "fail metric:3 gpu 1 UNKNOWN")
		first := n.takeSample(n.gpu(1))
		n.waitAfter(first, 100*time.Millisecond)
		last := n.takeSample(n.gpu(1))
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
		n.wantNear(got[7], 100+1000*middle.Sub(epoch).Seconds(), 100)

		// A changed line is weighted with the time before the change.
		n.setLines("gpu 1 metric 1 80")
		n.takeSample(n.gpu(1))
		n.waitAfter(last, last.notAfter.Sub(first.notBefore))
		end := n.takeSample(n.gpu(1))
		whole := n.metrics(first, end, nvml.GPM_METRIC_GRAPHICS_UTIL)[0]
		if whole.Value < 45 || whole.Value > 75 {
			n.Errorf("mean of 40, then 80, is %f", whole.Value)
		}
	})
}
