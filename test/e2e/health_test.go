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

// featureCount is the number of values of the label of nvidia_gpu_feature_supported.
const featureCount = 8

// TestXid79 fails and resets an allocated GPU three times, with Xid 79 (fallen off the bus).
func TestXid79(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	others := slices.DeleteFunc(uuids(defaultGPUs), func(id string) bool { return id == gpuID })

	// A feature is unsupported after three errors, which takes 50 s.
	awaitWithin(ctx, t, 90*time.Second, "ratios of the first GPM window and all features are exported", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		wrong := []error{err}
		for _, id := range others {
			with := seriesLabels{"uuid": id}
			if len(findSamples(s.series["nvidia_gpu_sm_active_ratio"], with)) == 0 {
				wrong = append(wrong, fmt.Errorf("no ratio of %s", id))
			}
			if features := findSamples(s.series["nvidia_gpu_feature_supported"], with); len(features) < featureCount {
				wrong = append(wrong, fmt.Errorf("number of features of %s: got %d, want %d", id, len(features), featureCount))
			}
		}
		return errors.Join(wrong...)
	})
	var took faultLatencies
	for round := range 3 {
		// A lower energy counter is evidence of a reset.
		m.setLines(t, fmt.Sprintf("gpu %d energy %d+70000/s", indexOf(t, gpuID), (3-round)*1_000_000_000))
		waitForHealth(ctx, t, n, d, pod, owners)
		before := d.nextScrape(ctx, t)
		took.add(failGPU(ctx, t, n, d, m, pod, gpuID, others))
		s := d.scrapeUntil(ctx, t, "the Xid is stored and counted", func(s metricsScrape) error {
			return s.wantValue(float64(round+1), "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": gpuID, "xid": "79"})
		})
		if err := s.checkNoWrongOwner(owners); err != nil {
			t.Error(err)
		}
		if err := s.wantValue(1, "nvidia_gpu_unhealthy_info", seriesLabels{"uuid": gpuID, "reason": "xid_79"}); err != nil {
			t.Error(err)
		}
		if err := compareGPUs(before, s, others); err != nil {
			t.Errorf("other GPUs: %v", err)
		}
		m.clear(t, fmt.Sprintf("gpu %d lost", indexOf(t, gpuID)))
	}
	m.setLines(t, fmt.Sprintf("gpu %d energy 0+70000/s", indexOf(t, gpuID)))
	waitForHealth(ctx, t, n, d, pod, owners)
	took.print(t)
}

// faultLatencies contains the times from Xids to their effects.
type faultLatencies struct{ listSent, allocatable, scraped, status []time.Duration }

func (f *faultLatencies) add(g faultLatencies) {
	f.listSent = append(f.listSent, g.listSent...)
	f.allocatable = append(f.allocatable, g.allocatable...)
	f.scraped = append(f.scraped, g.scraped...)
	f.status = append(f.status, g.status...)
}

func (f *faultLatencies) print(t *testing.T) {
	t.Helper()
	measureDurations(t, "Xid 79 → Unhealthy in the kubelet's log", 100*time.Millisecond, f.listSent...)
	measureDurations(t, "Xid 79 → seven GPUs in GetAllocatableResources, requested every 20 ms", 200*time.Millisecond, f.allocatable...)
	measureDurations(t, "Xid 79 → nvidia_gpu_healthy 0, scraped every 20 ms", time.Second, f.scraped...)
	measureDurations(t, "Xid 79 → Unhealthy in the pod's allocatedResourcesStatus", 5*time.Second, f.status...)
}

// failGPU fails a GPU with Xid 79 and waits until the kubelet, the metrics and the pod's status report the GPU as unhealthy.
func failGPU(
	ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, m *simulatedMachine, pod node.StaticPod, id string, others []string,
) (took faultLatencies) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	begin := time.Now()
	var measuring sync.WaitGroup
	errs := make(chan error, 3)
	measure := func(into *[]time.Duration, what string, try func(context.Context) error) {
		measuring.Go(func() {
			errs <- node.Until(ctx, what, try)
			*into = append(*into, time.Since(begin))
		})
	}
	m.addEvent(t, indexOf(t, id), "xid 79")
	m.setLines(t, fmt.Sprintf("gpu %d lost", indexOf(t, id)))
	measure(&took.allocatable, "only the other GPUs are allocatable", hasAllocatable(n, others...))
	measure(&took.scraped, "nvidia_gpu_healthy is 0", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		return s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": id})
	})
	measure(&took.status, "the device is Unhealthy in the pod's status", hasDeviceHealth(n, pod, id, "Unhealthy"))
	measuring.Wait()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	listSent, err := firstListAfter(n, begin)
	if err != nil {
		t.Fatal(err)
	}
	took.listSent = []time.Duration{listSent.Sub(begin)}
	return took
}

// firstListAfter returns the time of the first device list after begin, from the kubelet's log.
func firstListAfter(n *node.RealNode, begin time.Time) (time.Time, error) {
	times, err := listTimes(n)
	if err != nil {
		return time.Time{}, err
	}
	if i := slices.IndexFunc(times, func(at time.Time) bool { return at.After(begin) }); i >= 0 {
		return times[i], nil
	}
	return time.Time{}, errors.New("no device list in the kubelet's log")
}

// listTimes returns the times at which the current kubelet received device lists, from the kubelet's log.
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

// hasDeviceHealth returns a condition for await: the pod's status has exactly this device, with this health.
func hasDeviceHealth(n *node.RealNode, pod node.StaticPod, id, health string) func(context.Context) error {
	return func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		if len(status.Containers) == 0 { // for some time after the kubelet's start
			return errors.New("no containers in the pod's status")
		}
		if got := status.Containers[0].Devices; !slices.Equal(got, []node.DeviceHealth{{Resource: gpuResource, ID: id, Health: health}}) {
			return fmt.Errorf("devices of the pod: got %v, want %s of %s", got, health, id)
		}
		return nil
	}
}

// waitForHealth waits until all GPUs are allocatable and exported as healthy, and Healthy in the pod's status.
func waitForHealth(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, pod node.StaticPod, owners map[string]node.OwnerKey) {
	t.Helper()
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	d.scrapeUntil(ctx, t, "all GPUs are exported as healthy, with their owners", func(s metricsScrape) error {
		if healthy := s.sum("nvidia_gpu_healthy", nil); healthy != defaultGPUs {
			return fmt.Errorf("healthy GPUs: got %v, want %d", healthy, defaultGPUs)
		}
		return s.checkOwners(uuids(defaultGPUs), owners)
	})
	for id := range owners {
		await(ctx, t, "the device is Healthy in the pod's status", hasDeviceHealth(n, pod, id, "Healthy"))
	}
}

// compareGPUs returns an error if series of these GPUs were added, removed or changed, except for values of counters and times.
func compareGPUs(before, after metricsScrape, ids []string) error {
	wrong := []error{}
	for _, id := range ids {
		for name, samples := range before.series {
			was, is := findSamples(samples, seriesLabels{"uuid": id}), findSamples(after.series[name], seriesLabels{"uuid": id})
			if len(was) != len(is) {
				wrong = append(wrong, fmt.Errorf("number of series %s of %s: got %d, want %d", name, id, len(is), len(was)))
			} else if len(was) == 1 && !strings.HasSuffix(name, "_total") && !strings.HasSuffix(name, "_seconds") && was[0].Value != is[0].Value {
				wrong = append(wrong, fmt.Errorf("%s of %s: got %v, want %v", name, id, is[0].Value, was[0].Value))
			}
		}
	}
	return errors.Join(wrong...)
}
