package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// featureCount is the number of values of nvidia_gpu_feature_supported's label.
const featureCount = 8

// TestXid79 has a GPU that a pod holds fall off the bus, and come back after a reset, three times.
func TestXid79(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	holding := map[string]node.OwnerKey{held: mainContainer(pod)}
	others := slices.DeleteFunc(uuids(defaultGPUs), func(id string) bool { return id == held })

	// A denial counts after three, 20 s later: then GPUs have the features that the denials exclude.
	d.scrapeUntil(ctx, t, "each GPU's first GPM window has ended, and its features are known", func(s metricsScrape) error {
		wrong := []error{}
		for _, id := range others {
			with := seriesLabels{"uuid": id}
			if len(findSamples(s.series["nvidia_gpu_sm_active_ratio"], with)) == 0 {
				wrong = append(wrong, fmt.Errorf("%s has no ratio yet", id))
			}
			if features := findSamples(s.series["nvidia_gpu_feature_supported"], with); len(features) < featureCount {
				wrong = append(wrong, fmt.Errorf("%s has %d features yet", id, len(features)))
			}
		}
		return errors.Join(wrong...)
	})
	var took faultLatencies
	for round := range 3 {
		// An energy counter that begins anew is the evidence of a reset.
		m.setLines(t, fmt.Sprintf("gpu %d energy %d+70000/s", indexOf(t, held), (3-round)*1_000_000_000))
		waitUntilHealthy(ctx, t, n, d, pod, holding)
		before := d.nextScrape(ctx, t)
		took.add(failGPU(ctx, t, n, d, m, pod, held, others))
		s := d.scrapeUntil(ctx, t, "the Xid is stored, and counted", func(s metricsScrape) error {
			return s.wantValue(float64(round+1), "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": held, "xid": "79"})
		})
		if err := s.checkNoWrongOwner(holding); err != nil {
			t.Error(err)
		}
		if err := s.wantValue(1, "nvidia_gpu_unhealthy_info", seriesLabels{"uuid": held, "reason": "xid_79"}); err != nil {
			t.Error(err)
		}
		if err := compareGPUs(before, s, others); err != nil {
			t.Errorf("the other GPUs: %v", err)
		}
		m.clear(t, fmt.Sprintf("gpu %d lost", indexOf(t, held)))
	}
	m.setLines(t, fmt.Sprintf("gpu %d energy 0+70000/s", indexOf(t, held)))
	waitUntilHealthy(ctx, t, n, d, pod, holding)
	took.print(t)
}

// faultLatencies is how long it took from the Xid on until each saw it.
type faultLatencies struct{ listSent, allocatable, scraped, status []time.Duration }

func (f *faultLatencies) add(g faultLatencies) {
	f.listSent = append(f.listSent, g.listSent...)
	f.allocatable = append(f.allocatable, g.allocatable...)
	f.scraped = append(f.scraped, g.scraped...)
	f.status = append(f.status, g.status...)
}

func (f *faultLatencies) print(t *testing.T) {
	t.Helper()
	measureDurations(t, "from Xid 79 to Unhealthy on the stream, by the kubelet's log line of the list's arrival", 100*time.Millisecond, f.listSent...)
	measureDurations(t, "from Xid 79 to seven GPUs in GetAllocatableResources, which the test asks every 20 ms", 200*time.Millisecond, f.allocatable...)
	measureDurations(t, "from Xid 79 to nvidia_gpu_healthy 0, scraped every 20 ms", time.Second, f.scraped...)
	measureDurations(t, "from Xid 79 to Unhealthy in the pod's allocatedResourcesStatus", 5*time.Second, f.status...)
}

// failGPU has the GPU fail and waits until everybody has seen it.
func failGPU(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, m *simulatedMachine, pod node.StaticPod, id string, others []string) (took faultLatencies) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	begin := time.Now()
	var seen sync.WaitGroup
	errs := make(chan error, 3)
	see := func(into *[]time.Duration, what string, try func(context.Context) error) {
		seen.Go(func() {
			errs <- node.Until(ctx, what, try)
			*into = append(*into, time.Since(begin))
		})
	}
	m.addEvent(t, indexOf(t, id), "xid 79")
	m.setLines(t, fmt.Sprintf("gpu %d lost", indexOf(t, id)))
	see(&took.allocatable, "seven are allocatable", hasAllocatable(n, others...))
	see(&took.scraped, "nvidia_gpu_healthy is 0", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		return s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": id})
	})
	see(&took.status, "the pod's status says so", podDeviceHas(n, pod, id, "Unhealthy"))
	seen.Wait()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	pushed, err := firstListAfter(n, begin)
	if err != nil {
		t.Fatal(err)
	}
	took.listSent = []time.Duration{pushed.Sub(begin)}
	return took
}

// firstListAfter is when the kubelet wrote into its log that a list had come, for the first time after begin.
func firstListAfter(n *node.RealNode, begin time.Time) (time.Time, error) {
	times, err := listTimes(n)
	if err != nil {
		return time.Time{}, err
	}
	if i := slices.IndexFunc(times, func(at time.Time) bool { return at.After(begin) }); i >= 0 {
		return times[i], nil
	}
	return time.Time{}, errors.New("the kubelet's log does not speak of a list")
}

// listTimes are when lists came, by the log of the newest kubelet.
func listTimes(n *node.RealNode) (times []time.Time, err error) {
	out, err := n.Kubelet().Output()
	if err != nil {
		return nil, err
	}
	year := fmt.Sprint(time.Now().Year())
	for _, line := range linesWith(out, `"State pushed for device plugin" resource="`+gpuResource+`"`) {
		// I1121 09:04:25.123456    1234 client.go:98] "State pushed for device plugin" resource="nvidia.com/gpu" resourceCapacity=8
		at, err := time.ParseInLocation("20060102 15:04:05.000000", year+line[1:21], time.Local)
		if err != nil {
			return nil, fmt.Errorf("read the kubelet's log: %w", err)
		}
		times = append(times, at)
	}
	return times, nil
}

func podDeviceHas(n *node.RealNode, pod node.StaticPod, id, health string) func(context.Context) error {
	return func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		if len(status.Containers) == 0 { // a kubelet that has just been started says nothing of them
			return errors.New("it has no containers")
		}
		if got := status.Containers[0].Devices; !slices.Equal(got, []node.DeviceHealth{{Resource: gpuResource, ID: id, Health: health}}) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	}
}

// waitUntilHealthy waits until everybody has everything healthy.
func waitUntilHealthy(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, pod node.StaticPod, holding map[string]node.OwnerKey) {
	t.Helper()
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	d.scrapeUntil(ctx, t, "all GPUs are shown as they are", func(s metricsScrape) error {
		if healthy := s.sum("nvidia_gpu_healthy", nil); healthy != defaultGPUs {
			return fmt.Errorf("%v are healthy", healthy)
		}
		return s.checkOwners(uuids(defaultGPUs), holding)
	})
	for id := range holding {
		await(ctx, t, "the pod's status says so", podDeviceHas(n, pod, id, "Healthy"))
	}
}

// compareGPUs says what is not as it was of these GPUs, the series' existence included. Counters and clocks go on.
func compareGPUs(before, after metricsScrape, ids []string) error {
	wrong := []error{}
	for _, id := range ids {
		for name, samples := range before.series {
			was, is := findSamples(samples, seriesLabels{"uuid": id}), findSamples(after.series[name], seriesLabels{"uuid": id})
			if len(was) != len(is) {
				wrong = append(wrong, fmt.Errorf("%s of %s: %d series, then %d", name, id, len(was), len(is)))
			} else if len(was) == 1 && !strings.HasSuffix(name, "_total") && !strings.HasSuffix(name, "_seconds") && was[0].Value != is[0].Value {
				wrong = append(wrong, fmt.Errorf("%s of %s: %v, then %v", name, id, was[0].Value, is[0].Value))
			}
		}
	}
	return errors.Join(wrong...)
}
