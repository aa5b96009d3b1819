package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// envListServer in the environment makes this test binary a kubelet that serves the benchNode in the variable (JSON). The kubelet is
// a process of its own, so that benchmarks do not count its memory.
const envListServer = "PODGAUGE_TEST_LIST_SERVER"

// benchNode is a node that is scraped: eight H100s, or what they are cut into, and pods.
type benchNode struct {
	Socket string // the kubelet's
	// Pods have two containers each, of which the first ones of the first pods hold a
	// device each, or a replica of one.
	Pods int
	// MIGDevices is into how many each GPU is cut, and Replicas how many pods share one; 0:
	// none.
	MIGDevices, Replicas int
	// Processes runs one in each container that holds something.
	Processes bool
	// Include are the families that are shown; none: all but those of the Go runtime and
	// the process. Runtime shows these as well.
	Include []string
	Set     string // --metrics.set; empty: full
	Runtime bool
}

const benchGPUs = 8

func (n benchNode) machine() *sim.Machine {
	m := sim.NewMachine(metric.Metrics(), benchGPUs, time.Now)
	if n.MIGDevices > 0 {
		for _, gpu := range m.GPUs() {
			m.Partition(gpu, slices.Repeat([]string{"1g.10gb"}, n.MIGDevices)...)
		}
	}
	return m
}

// deviceIDs are the ids that pods hold.
func (n benchNode) deviceIDs(m *sim.Machine) (ids []device.AdvertisedID) {
	for _, id := range m.AllocatableIDs() {
		if n.Replicas == 0 {
			ids = append(ids, id.Advertised())
		}
		for i := range n.Replicas {
			ids = append(ids, id.Replica(i))
		}
	}
	return ids
}

// owner is the c-th container of the p-th pod.
func (benchNode) owner(p, c int) device.Owner {
	return device.Owner{Namespace: fmt.Sprintf("team-%d", p%7), Pod: fmt.Sprintf("workload-with-a-usual-name-%d-x7k2p", p), Container: fmt.Sprintf("container-%d", c)}
}

// benchKubelet is its kubelet.
type benchKubelet struct {
	api.UnimplementedPodResourcesListerServer
	list        *api.ListPodResourcesResponse
	allocatable *api.AllocatableResourcesResponse
}

// List is the kubelet's.
func (b *benchKubelet) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	return b.list, nil
}

// GetAllocatableResources is the kubelet's.
func (b *benchKubelet) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	return b.allocatable, nil
}

func (n benchNode) kubelet() *benchKubelet {
	b := &benchKubelet{list: &api.ListPodResourcesResponse{}, allocatable: &api.AllocatableResourcesResponse{}}
	const containers = 2
	ids := n.deviceIDs(n.machine())
	for p := range n.Pods {
		pod := &api.PodResources{Name: n.owner(p, 0).Pod, Namespace: n.owner(p, 0).Namespace}
		for c := range containers {
			container := &api.ContainerResources{Name: n.owner(p, c).Container}
			if c == 0 && p < len(ids) {
				devices := &api.ContainerDevices{ResourceName: gpuResource, DeviceIds: []string{string(ids[p])}}
				container.Devices = append(container.Devices, devices)
				b.allocatable.Devices = append(b.allocatable.Devices, devices)
			}
			pod.Containers = append(pod.Containers, container)
		}
		b.list.PodResources = append(b.list.PodResources, pod)
	}
	return b
}

// runListServer serves until its parent has gone.
func runListServer(spec string) {
	var n benchNode
	if err := json.Unmarshal([]byte(spec), &n); err != nil {
		panic(err)
	}
	l, err := net.Listen("unix", n.Socket)
	if err != nil {
		panic(err)
	}
	old := time.Now().Add(-time.Hour) // a kubelet that has been up for long is trusted at once
	if err := os.Chtimes(n.Socket, old, old); err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	api.RegisterPodResourcesListerServer(s, n.kubelet())
	if err := s.Serve(l); err != nil {
		panic(err)
	}
}

// startKubelet has a process of its own be the node's kubelet.
func (n *benchNode) startKubelet(tb testing.TB) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	n.Socket = filepath.Join(dir, "kubelet.sock")
	spec, err := json.Marshal(n)
	if err != nil {
		tb.Fatal(err)
	}
	kubelet := exec.Command(os.Args[0])
	kubelet.Env = append(os.Environ(), envListServer+"="+string(spec))
	kubelet.Stderr = os.Stderr
	kubelet.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := kubelet.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { kubelet.Process.Kill(); kubelet.Wait() })
}

// startProcesses has a process run in each container that holds something, in cgroups as they are
// in /proc, and links to the kubelet's logs that say how containers are called.
func (n benchNode) startProcesses(tb testing.TB, m *sim.Machine, log *slog.Logger) exporter.ProcessResolver {
	tb.Helper()
	p := newFakeProcFS(tb, false)
	logs := tb.TempDir()
	for i, deviceID := range n.deviceIDs(m) {
		if !n.Processes || i >= n.Pods {
			break
		}
		pid, owner := uint32(1000+i), n.owner(i, 0)
		uid, id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), fmt.Sprintf("%064x", i)
		p.addContainerProcess(pid, uid, id)
		p.must(os.Symlink("/nowhere", filepath.Join(logs, owner.Pod+"_"+owner.Namespace+"_"+owner.Container+"-"+id+".log")))
		m.StartProcess(deviceID.Device(), pid, 1<<30, 0.1)
	}
	return cgroup.New(cgroup.Options{Proc: p.root, Pods: tb.TempDir(), Logs: logs, Log: log})
}

// scrapedNode is a node with devices and a kubelet, of which nothing else is known.
type scrapedNode struct {
	*scriptedNode
	board   *device.Inventory
	kubelet *podresources.Client
}

func (n scrapedNode) Statuses() ([]device.Status, <-chan struct{})       { return n.board.Get() }
func (n scrapedNode) Allocations() (device.Allocations, <-chan struct{}) { return n.kubelet.Snapshot() }

func (n scrapedNode) Driver() device.Driver { return device.Driver{State: device.DriverUp} }

func (n scrapedNode) ListAllocations(ctx context.Context) device.Allocations {
	return n.kubelet.ListAllocations(ctx)
}

// newBenchClient builds the exporter from the program's own parts, over real sockets on both
// sides.
func newBenchClient(tb testing.TB, n benchNode) *scrapeClient {
	tb.Helper()
	n.startKubelet(tb)
	log := slog.New(slog.DiscardHandler)
	machine := n.machine()
	board := &device.Inventory{}
	readers := device.NewReaders(machine)
	devices, err := machine.Devices(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	var statuses []device.Status
	for _, d := range devices {
		statuses = append(statuses, device.Status{Device: d, Healthy: true, Since: time.Now()})
	}
	board.Set(statuses)
	set := cmp.Or(n.Set, "full")
	if n.Include != nil {
		set = "none"
	}
	var exclude []string
	if !n.Runtime {
		exclude = []string{"go_*", "process_*"}
	}
	filter, err := exporter.NewFamilyFilter(set, n.Include, exclude)
	if err != nil {
		tb.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	selfMetrics := exporter.NewSelfMetrics(registry, version, true, filter)
	selfMetrics.InitResource(gpuResource)
	podResources, err := podresources.New(n.Socket, podresources.Options{Log: log, OnCall: selfMetrics.ObserveKubeletCall})
	if err != nil {
		tb.Fatal(err)
	}
	e := exporter.New(exporter.Sources{
		Metrics: machine.Metrics(), Node: scrapedNode{new(scriptedNode), board, podResources}, Readers: readers, Processes: n.startProcesses(tb, machine, log),
	}, exporter.Options{Filter: filter})
	server := &http.Server{Handler: uncachedHandler(e, board, statuses, exporter.HandlerOptions{TelemetryPath: "/metrics", Registry: registry, Log: log})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- podResources.Run(ctx) }()
	go server.Serve(listener)
	tb.Cleanup(func() { server.Close(); e.Drain(); cancel(); <-ended; http.DefaultClient.CloseIdleConnections() })
	return newScrapeClient(tb, "http://"+listener.Addr().String()+"/metrics", min(len(n.deviceIDs(machine)), n.Pods))
}
