package app

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/churn"
)

// TestChurn has pods come and go on the simulated node, several a second, with the kubelet
// restarted among them, and holds each scrape against what the kubelet knew. It takes a
// number of transitions from PODGAUGE_CHURN.
func TestChurn(t *testing.T) {
	transitions, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_CHURN"), "100"))
	if err != nil {
		t.Fatalf("PODGAUGE_CHURN: %v", err)
	}
	n := newChurned(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	begin := time.Now()
	record, snapshots, err := churn.Run(t.Context(), n, churn.Plan{
		Transitions: transitions, Restarts: 2 + transitions/100, AskEvery: 5 * time.Millisecond, ScrapeEvery: 100 * time.Millisecond,
		Pods: []int{1, 1, 1, 1, 2, 2}, Seed: seed,
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	v := churn.Judge(churn.Truth{Holdings: record.Holdings(now), Outages: record.Outages(now), Burned: n.burned}, snapshots)
	for _, f := range v.Figures() {
		t.Logf("figure: %s: %s", f.What, f.Value)
	}
	t.Logf("figure: transitions a second: %.1f", float64(v.Transitions)/now.Sub(begin).Seconds())
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if v.Transitions < transitions {
		t.Errorf("there were %d transitions, not %d", v.Transitions, transitions)
	}
}

// churned is the simulated node as a churn.Node. Its GPUs burn at rates of their own, whoever
// holds them, so that their counters are known at all times.
type churned struct {
	*world
	began time.Time
	watts map[string]float64
}

func newChurned(t *testing.T) *churned {
	t.Helper()
	machine := sim.NewMachine(nvml.Metrics(), 8, time.Now)
	n := &churned{watts: map[string]float64{}}
	power := slices.IndexFunc(nvml.Metrics(), func(m device.Metric) bool { return m.Name == "nvidia_gpu_power_watts" })
	for i, gpu := range machine.GPUs() {
		machine.Busy(device.ID(gpu), float64(i)/8)
		samples, err := machine.Read(gpu, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			if s.Metric == power {
				n.watts[string(gpu)] = s.Value
			}
		}
	}
	n.began = time.Now()
	n.world = newWorldOf(t, setting{machine: machine})
	n.untilRegistered()
	return n
}

// burned is what a GPU has burned since the beginning.
func (n *churned) burned(id string, at time.Time) float64 {
	return n.watts[id] * at.Sub(n.began).Seconds()
}

func (n *churned) PodName(name string) string { return name }

// pod is one with a grace where its number is even: it is listed for a while after it was
// deleted.
func (n *churned) pod(name string, gpus int) kubelet.Pod {
	p := pod(churn.Namespace, name, gpus)
	if number, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]); number%2 == 0 {
		p.Grace = 200 * time.Millisecond
	}
	return p
}

func (n *churned) Put(ctx context.Context, name string, gpus int) error {
	return n.kubelet.RunPod(ctx, n.pod(name, gpus))
}

func (n *churned) Delete(name string) error { return n.kubelet.DeletePod(n.pod(name, 0)) }

func (n *churned) Restart(ctx context.Context, i int, wait time.Duration) error {
	return n.kubelet.Restart(ctx, kubelet.RestartOptions{
		Signal: []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2],
		While:  func() { <-time.After(wait) },
	})
}

func (n *churned) Ask(context.Context) (churn.Answer, error) {
	var a churn.Answer
	a.From = time.Now()
	s := n.kubelet.State()
	a.To = time.Now()
	a.Whole = s.PodsRead
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				if p.Listed {
					a.Held = append(a.Held, churn.Held{Device: d.ID, Owner: churn.Owner{Namespace: p.Namespace, Pod: p.Name, Container: c.Name}})
				}
			}
		}
	}
	return a, nil
}

func (n *churned) Scrape(ctx context.Context) (churn.Snapshot, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+"/metrics", http.NoBody)
	if err != nil {
		return churn.Snapshot{}, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return churn.Snapshot{}, err
	}
	defer answer.Body.Close()
	return churn.Parse(answer.Body)
}
