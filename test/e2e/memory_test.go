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

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/podgauge/podgauge/test/kubelet/churn"
)

// TestMemory measures podgauge's memory during scrapes every second. PODGAUGE_SOAK is the duration (make soak).
func TestMemory(t *testing.T) { soak(t, 34, gpuResource, nil) }

// TestMemoryOfEverything is TestMemory with 56 MIG devices and all optional metrics.
func TestMemoryOfEverything(t *testing.T) {
	lines := []string{}
	for i := range defaultGPUs {
		lines = append(lines, scenarioLines(newMIGDevices(i, slices.Repeat([]string{"1g.10gb"}, 7)...))...)
	}
	soak(t, 42, smallMIGResource, lines, "--mig-strategy=mixed", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-uid", "--metrics.labels-allowlist=*")
}

// soak runs podgauge with pods that have one and two devices of the resource. limitMB is in units of 2^20 bytes.
func soak(t *testing.T, limitMB int, resource string, lines []string, args ...string) {
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("PODGAUGE_SOAK"), "20s"))
	must(t, err)
	n := startNode(t, node.Options{})
	t.Setenv("PODGAUGE_BIN", testfile.CopyUnpacked(t, commandLine(t)[0], t.TempDir()))
	m := newMachine(t, n, append([]string{"gpu * utilization 0~100/20s", "gpu * power 70000~700000/30s"}, lines...)...)
	d := m.start(t, n, args...)
	await(t, resource+" is allocatable", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, resource)
		if len(ids) < defaultGPUs {
			return fmt.Errorf("allocatable devices: got %d, want at least %d, %w", len(ids), defaultGPUs, err)
		}
		return nil
	})
	runPod(t, n, podWithResource("one", resource, 1))
	runPod(t, n, podWithResource("two", resource, 2))
	scrapes := watchScrapes(t, d, time.Second, func(metricsScrape) error { return nil })
	resident, anonymous := sampleMemory(t, d, duration)
	if count := scrapes.stop(t); float64(count) < 0.9*duration.Seconds() {
		t.Errorf("number of scrapes in %s: got %d", duration, count)
	}
	quarter := len(anonymous) / 4
	early, late := slices.Max(anonymous[quarter:2*quarter]), slices.Max(anonymous[3*quarter:])
	printMeasurement(t, fmt.Sprintf("maximum resident memory over %s, scraped every second", duration),
		fmt.Sprintf("%.1f MB (2^20 bytes); limit %d MB. Anonymous memory: maximum %.1f MB in the second quarter, %.1f MB in the last",
			megabytes(slices.Max(resident)), limitMB, megabytes(early), megabytes(late)))
	limit := limitMB << 20
	if node.Tolerance() > 1 { // on a busy machine, the kernel maps more pages of the program's file at once
		limit += limit / 10
	}
	if bytes := slices.Max(resident); bytes > limit {
		t.Errorf("resident memory: got %d bytes, want at most %d", bytes, limit)
	}
	// Go's heap grows in the first half minute. Pages of the program's file do not count: they grow if the kernel maps huge pages.
	if growth := late - early; growth > 1<<20 && duration >= 2*time.Minute {
		t.Errorf("growth of anonymous memory from the second to the last quarter: got %d bytes, want at most %d", growth, 1<<20)
	}
}

// sampleMemory samples podgauge's resident memory and its anonymous part four times a second.
func sampleMemory(t *testing.T, d *podgaugeProcess, duration time.Duration) (resident, anonymous []int) {
	t.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); waitUntil(t, time.Now().Add(250*time.Millisecond)) {
		b := testfile.Read(t, fmt.Sprintf("/proc/%d/statm", d.PID))
		var size, pages, files int // proc_pid_statm(5)
		_, err := fmt.Sscan(b, &size, &pages, &files)
		must(t, err)
		resident = append(resident, pages*os.Getpagesize())
		anonymous = append(anonymous, (pages-files)*os.Getpagesize())
	}
	return resident, anonymous
}

func megabytes(bytes int) float64 { return float64(bytes) / (1 << 20) }

// TestChurn starts and deletes several pods a second, restarts the kubelet in between, and checks each scrape against the kubelet's List.
// PODGAUGE_CHURN is the number of transitions (make churn: 1000).
func TestChurn(t *testing.T) {
	transitions, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_CHURN"), "60"))
	if err != nil {
		t.Fatalf("PODGAUGE_CHURN: %v", err)
	}
	if node.Tolerance() > 4 {
		t.Skip("this machine is too slow: the kubelet responds later than podgauge's limit of a second")
	}
	n := startNode(t, node.Options{})
	c := &churnNode{n: n, countersStarted: time.Now().Truncate(time.Microsecond), deletedPods: map[string]bool{}}
	m := newMachine(t, n, fmt.Sprintf("epoch %d.%06d", c.countersStarted.Unix(), c.countersStarted.Nanosecond()/1000))
	for i := range defaultGPUs {
		must(t, m.Set(fmt.Sprintf("gpu %d energy 0+%d/s", i, c.milliwatts(i))))
	}
	c.daemon = m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+time.Duration(transitions)*500*time.Millisecond)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	begin := time.Now()
	record, snapshots, err := churn.Run(ctx, c, churn.Plan{
		Transitions: transitions, KubeletRestarts: 1 + transitions/100, ListInterval: 25 * time.Millisecond, ScrapeInterval: 100 * time.Millisecond,
		GPUsPerPod: []int{1, 1, 1, 1, 2, 2}, Seed: seed,
	})
	c.close()
	must(t, err)
	end := time.Now()
	v := churn.Verify(churn.GroundTruth{Allocations: record.Allocations(end), Outages: record.Outages(end), EnergyAt: c.energyAt}, snapshots)
	for _, f := range v.Measurements() {
		printMeasurement(t, f.Name, f.Value)
	}
	printMeasurement(t, "transitions a second", fmt.Sprintf("%.1f", float64(v.Transitions)/end.Sub(begin).Seconds()))
	expect.NoError(t, v.Err())
	if v.Transitions < transitions {
		t.Errorf("transitions: got %d, want at least %d", v.Transitions, transitions)
	}
}

// churnNode implements churn.NodeUnderTest.
type churnNode struct {
	n               *node.RealNode
	daemon          *podgaugeProcess
	countersStarted time.Time // at which the GPUs' counters were 0

	mu   sync.Mutex
	conn *grpc.ClientConn // nil after an error
	// restarting is set before the kubelet's stop, and reset by the first response of the new kubelet that has all pods of before.
	// kubeletUpAt is the start of the new kubelet; zero before.
	restarting  bool
	kubeletUpAt time.Time
	listedPods  []string // pods of the latest response; while restarting, of all responses since the stop
	deletedPods map[string]bool
}

// milliwatts returns the constant power of a GPU.
func (*churnNode) milliwatts(gpu int) int { return 100000 + 50000*gpu }

// energyAt returns the energy counter of a GPU at a time, in joules.
func (c *churnNode) energyAt(id string, at time.Time) float64 {
	return float64(c.milliwatts(slices.Index(uuids(defaultGPUs), id))) / 1000 * at.Sub(c.countersStarted).Seconds()
}

func churnPod(name string, gpus int) node.StaticPod {
	p := podWithGPUs(name, gpus)
	p.HostNetwork = true // a pod network takes half of the start time
	return p
}

func (*churnNode) PodName(name string) string { return churnPod(name, 0).FullName() }

func (c *churnNode) CreatePod(_ context.Context, name string, gpus int) error {
	_, err := c.n.CreatePod(churnPod(name, gpus))
	return err
}

func (c *churnNode) DeletePod(name string) error {
	c.mu.Lock()
	c.deletedPods[c.PodName(name)] = true
	c.mu.Unlock()
	return c.n.DeletePod(churnPod(name, 0))
}

func (c *churnNode) RestartKubelet(ctx context.Context, i int, wait time.Duration) error {
	c.mu.Lock()
	c.restarting, c.kubeletUpAt = true, time.Time{}
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
	c.kubeletUpAt = time.Now()
	return err
}

func (c *churnNode) Scrape(ctx context.Context) (churn.MetricsSnapshot, error) {
	body, err := c.daemon.get(ctx, "/metrics")
	if err != nil {
		return churn.MetricsSnapshot{}, err
	}
	defer body.Close()
	return churn.Parse(body)
}

// ListAllocations keeps its connection until an error: a failed connection would delay the first request to a restarted kubelet.
func (c *churnNode) ListAllocations(ctx context.Context) (churn.KubeletListing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		conn, err := grpc.NewClient("unix:"+c.n.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return churn.KubeletListing{}, err
		}
		c.conn = conn
	}
	var a churn.KubeletListing
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	a.From = time.Now()
	list, err := podresources.NewPodResourcesListerClient(c.conn).List(ctx, &podresources.ListPodResourcesRequest{})
	a.To = time.Now()
	if status.Code(err) == codes.ResourceExhausted {
		return a, fmt.Errorf("kubelet's rate limit exceeded: %w", err) // the test's fault: the test must stay below the limit
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
			owner := churn.ContainerKey{Namespace: pod.Namespace, Pod: pod.Name, Container: container.Name}
			for _, devices := range container.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					a.Allocated = append(a.Allocated, churn.DeviceOwner{Device: id, Owner: owner})
				}
			}
		}
	}
	a.Complete = c.isComplete(ctx, pods)
	return a, nil
}

// isComplete reports whether a response contains all pods. After a kubelet restart, these are the pods listed before, except for pods that
// the new kubelet rejected because no plugin was registered yet. The caller must lock mu.
func (c *churnNode) isComplete(ctx context.Context, pods []string) bool {
	if !c.restarting {
		c.listedPods = pods
		return true
	}
	before := c.listedPods
	c.listedPods = append(c.listedPods, pods...)
	if c.kubeletUpAt.IsZero() {
		return false
	}
	missing := slices.DeleteFunc(slices.Clone(before), func(pod string) bool { return c.deletedPods[pod] || slices.Contains(pods, pod) })
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
	c.restarting, c.listedPods = false, pods
	return true
}

func (c *churnNode) close() {
	if c.conn != nil {
		c.conn.Close()
	}
}
