package app_test

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/kubelet/churn"
)

// TestChurn adds and deletes several pods a second on the simulated node, restarts the kubelet, and compares each scrape with the kubelet's
// state. PODGAUGE_CHURN is the number of transitions.
func TestChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	transitions, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_CHURN"), "60"))
	if err != nil {
		t.Fatalf("PODGAUGE_CHURN: %v", err)
	}
	n := newChurnTarget(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	begin := time.Now()
	record, snapshots, err := churn.Run(t.Context(), n, churn.Plan{
		Transitions: transitions, KubeletRestarts: 2 + transitions/100, ListInterval: 5 * time.Millisecond, ScrapeInterval: 100 * time.Millisecond,
		GPUsPerPod: []int{1, 1, 1, 1, 2, 2}, Seed: seed,
	})
	require.NoError(t, err)
	now := time.Now()
	v := churn.Verify(churn.GroundTruth{Allocations: record.Allocations(now), Outages: record.Outages(now), EnergyAt: n.joules}, snapshots)
	for _, f := range v.Measurements() {
		t.Logf("figure: %s: %s", f.Name, f.Value)
	}
	t.Logf("figure: transitions a second: %.1f", float64(v.Transitions)/now.Sub(begin).Seconds())
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if v.Transitions < transitions {
		t.Errorf("got %d transitions, want %d", v.Transitions, transitions)
	}
}

// churnTarget is the simulated node as a churn.NodeUnderTest. Each GPU has a fixed power, with or without an owner, so that all
// energy counters are known at any time.
type churnTarget struct {
	*testApp
	start      time.Time
	watts      map[string]float64
	restarting atomic.Bool // the kubelet's connections may have ended, before its state does
}

func newChurnTarget(t *testing.T) *churnTarget {
	t.Helper()
	machine := sim.NewMachine(metric.Metrics(), 8, time.Now)
	n := &churnTarget{watts: map[string]float64{}}
	power := slices.IndexFunc(metric.Metrics(), func(m device.Metric) bool { return m.Name == "nvidia_gpu_power_watts" })
	for i, gpu := range machine.GPUs() {
		machine.SetUtilization(device.ID(gpu), float64(i)/8)
		samples, err := machine.Read(gpu)
		require.NoError(t, err)
		for _, s := range samples {
			if s.Metric == power {
				n.watts[string(gpu)] = s.Value
			}
		}
	}
	n.start = time.Now()
	own := kubelet.PodSpec{Namespace: "podgauge", Name: "podgauge-x7k2p", Containers: []kubelet.ContainerSpec{{Name: "podgauge"}}}
	n.testApp = newTestAppWith(t, testSetup{machine: machine, env: map[string]string{"POD_NAME": own.Name}})
	n.waitRegistered()
	require.NoError(t, n.kubelet.RunPod(t.Context(), own))
	program.WaitUntil(t, "the kubelet's start is over", func() bool { // without a collection, which would count energy
		_, allocations := n.getPath(api.AllocationsPath)
		return strings.Contains(allocations, `"complete":true`)
	})
	return n
}

// joules returns the energy of a GPU since the start.
func (n *churnTarget) joules(id string, at time.Time) float64 {
	return n.watts[id] * at.Sub(n.start).Seconds()
}

func (n *churnTarget) PodName(name string) string { return name }

// pod returns a pod. Pods with even numbers have a grace period, so that List contains them for a while after the deletion.
func (n *churnTarget) pod(name string, gpus int) kubelet.PodSpec {
	p := gpuPod(churn.PodNamespace, name, gpus)
	if number, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]); number%2 == 0 {
		p.GracePeriod = 200 * time.Millisecond
	}
	return p
}

func (n *churnTarget) CreatePod(ctx context.Context, name string, gpus int) error {
	return n.kubelet.RunPod(ctx, n.pod(name, gpus))
}

func (n *churnTarget) DeletePod(name string) error { return n.kubelet.DeletePod(n.pod(name, 0)) }

func (n *churnTarget) RestartKubelet(ctx context.Context, i int, wait time.Duration) error {
	n.restarting.Store(true)
	defer n.restarting.Store(false)
	return n.kubelet.Restart(ctx, func() { <-time.After(wait) })
}

func (n *churnTarget) ListAllocations(context.Context) (churn.KubeletListing, error) {
	var a churn.KubeletListing
	restarting := n.restarting.Load()
	a.From = time.Now()
	s := n.kubelet.State()
	a.To = time.Now()
	a.Complete = s.PodsRead && !restarting
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				if p.InList {
					a.Allocated = append(a.Allocated, churn.DeviceOwner{Device: d.ID, Owner: churn.ContainerKey{Namespace: p.Namespace, Pod: p.Name, Container: c.Name}})
				}
			}
		}
	}
	return a, nil
}

func (n *churnTarget) Scrape(ctx context.Context) (churn.MetricsSnapshot, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+"/metrics", http.NoBody)
	if err != nil {
		return churn.MetricsSnapshot{}, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return churn.MetricsSnapshot{}, err
	}
	defer resp.Body.Close()
	return churn.Parse(resp.Body)
}
