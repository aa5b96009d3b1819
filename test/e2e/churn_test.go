package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/test/churn"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestChurn has pods come and go, several a second, with the kubelet restarted among them, and holds each scrape against what the kubelet
// said. It takes a number of transitions from PODGAUGE_CHURN (make churn: 1000).
func TestChurn(t *testing.T) {
	transitions, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_CHURN"), "60"))
	if err != nil {
		t.Fatalf("PODGAUGE_CHURN: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+time.Duration(transitions)*500*time.Millisecond)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	c := &churned{n: n, epoch: time.Now().Truncate(time.Microsecond), gone: map[string]bool{}}
	m := newMachine(t, n, fmt.Sprintf("epoch %d.%06d", c.epoch.Unix(), c.epoch.Nanosecond()/1000))
	for i := range gpus {
		m.set(t, fmt.Sprintf("gpu %d energy 0+%d/s", i, c.milliwatts(i)))
	}
	c.daemon = m.start(t, n)
	allocatable(ctx, t, n, uuids(gpus)...)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	begin := time.Now()
	record, snapshots, err := churn.Run(ctx, c, churn.Plan{
		Transitions: transitions, Restarts: 1 + transitions/100, AskEvery: 25 * time.Millisecond, ScrapeEvery: 100 * time.Millisecond,
		Pods: []int{1, 1, 1, 1, 2, 2}, Seed: seed,
	})
	c.close()
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now()
	v := churn.Judge(churn.Truth{Holdings: record.Holdings(end), Outages: record.Outages(end), Burned: c.burned}, snapshots)
	for _, f := range v.Figures() {
		figure(t, f.What, f.Value)
	}
	figure(t, "transitions a second", fmt.Sprintf("%.1f", float64(v.Transitions)/end.Sub(begin).Seconds()))
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if v.Transitions < transitions {
		t.Errorf("there were %d transitions, not %d", v.Transitions, transitions)
	}
}

// churned is the node as a churn.Node.
type churned struct {
	n      *node.Node
	daemon *daemon
	epoch  time.Time // at which the GPUs' counters were 0

	mu   sync.Mutex
	conn *grpc.ClientConn // the newest; nil where it failed
	// restarting is from before a kubelet's end to the first answer of its successor that names all pods that were listed; back is when that
	// one had started, zero before.
	restarting bool
	back       time.Time
	listed     []string        // the pods of the newest answers; of all since its begin while it is restarting
	gone       map[string]bool // those that were deleted
}

// milliwatts are a GPU's, whoever holds it.
func (*churned) milliwatts(gpu int) int { return 100000 + 50000*gpu }

// burned is a GPU's counter, in joules.
func (c *churned) burned(id string, at time.Time) float64 {
	return float64(c.milliwatts(slices.Index(uuids(gpus), id))) / 1000 * at.Sub(c.epoch).Seconds()
}

func churnPod(name string, gpus int) node.Pod {
	p := holds(name, gpus)
	p.HostNetwork = true // a network of its own is half the work of a start
	return p
}

// PodName and the rest make it a churn.Node.
func (*churned) PodName(name string) string { return churnPod(name, 0).FullName() }

func (c *churned) Put(_ context.Context, name string, gpus int) error {
	_, err := c.n.Put(churnPod(name, gpus))
	return err
}

func (c *churned) Delete(name string) error {
	c.mu.Lock()
	c.gone[c.PodName(name)] = true
	c.mu.Unlock()
	return c.n.Delete(churnPod(name, 0))
}

func (c *churned) Restart(ctx context.Context, i int, wait time.Duration) error {
	c.mu.Lock()
	c.restarting, c.back = true, time.Time{}
	c.mu.Unlock()
	if err := c.n.StopKubelet(ctx, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]); err != nil {
		return err
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := c.n.StartKubelet(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.back = time.Now()
	return err
}

func (c *churned) Scrape(ctx context.Context) (churn.Snapshot, error) {
	body, err := c.daemon.get(ctx, "/metrics")
	if err != nil {
		return churn.Snapshot{}, err
	}
	defer body.Close()
	return churn.Parse(body)
}

// Ask asks over a connection that is kept as long as it works: one that has failed would wait before it tries a restarted kubelet again.
func (c *churned) Ask(ctx context.Context) (churn.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		conn, err := grpc.NewClient("unix:"+c.n.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return churn.Answer{}, err
		}
		c.conn = conn
	}
	var a churn.Answer
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	a.From = time.Now()
	list, err := podresources.NewPodResourcesListerClient(c.conn).List(ctx, &podresources.ListPodResourcesRequest{})
	a.To = time.Now()
	if status.Code(err) == codes.ResourceExhausted {
		return a, fmt.Errorf("the question was one too many: %w", err) // the test's own fault: it leaves room
	}
	if err != nil {
		c.conn.Close()
		c.conn = nil
		return a, nil
	}
	pods := []string{}
	for _, pod := range list.GetPodResources() {
		pods = append(pods, pod.Name)
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					a.Held = append(a.Held, churn.Held{Device: id, Owner: churn.Owner{Namespace: pod.Namespace, Pod: pod.Name, Container: container.Name}})
				}
			}
		}
	}
	a.Whole = c.whole(ctx, pods)
	return a, nil
}

// whole tells whether an answer names all that there are. After a restart that is all whom the kubelet listed before, but for those it turned
// away: they were to be started, and there was no plugin yet. mu is held.
func (c *churned) whole(ctx context.Context, pods []string) bool {
	if !c.restarting {
		c.listed = pods
		return true
	}
	before := c.listed
	c.listed = append(c.listed, pods...)
	if c.back.IsZero() {
		return false
	}
	missing := slices.DeleteFunc(slices.Clone(before), func(pod string) bool { return c.gone[pod] || slices.Contains(pods, pod) })
	if len(missing) > 0 {
		all, err := c.n.Pods(ctx)
		if err != nil {
			return false
		}
		for _, pod := range all {
			if pod.Phase == "Failed" {
				missing = slices.DeleteFunc(missing, func(name string) bool { return name == pod.Name })
			}
		}
	}
	if len(missing) > 0 {
		return false
	}
	c.restarting, c.listed = false, pods
	return true
}

func (c *churned) close() {
	if c.conn != nil {
		c.conn.Close()
	}
}
