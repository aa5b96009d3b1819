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
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// envListServer makes this test binary a kubelet that serves the benchNode (JSON) in the variable. The kubelet is a separate process, so that
// benchmarks do not count its memory.
const envListServer = "PODGAUGE_TEST_LIST_SERVER"

// benchNode is a scraped node: H100s or their MIG devices or replicas, and pods.
type benchNode struct {
	Socket string // of the kubelet
	GPUs   int    // 0: eight
	// Pods is the number of pods, each with two containers. The first containers of the first pods have a device or replica each.
	Pods int
	// MIGDevices and Replicas are numbers per GPU; 0: none.
	MIGDevices, Replicas int
	// Processes starts a process in each container with a device.
	Processes bool
	// Include lists the exported families; nil: all except the Go runtime and process families, which Runtime adds.
	Include []string
	Set     string // --metrics.set; empty: full
	Runtime bool
}

func (n benchNode) machine() *sim.Machine {
	m := sim.NewMachine(metric.Metrics(), cmp.Or(n.GPUs, 8), time.Now)
	if n.MIGDevices > 0 {
		for _, gpu := range m.GPUs() {
			m.Partition(gpu, slices.Repeat([]string{"1g.10gb"}, n.MIGDevices)...)
		}
	}
	return m
}

// deviceIDs returns the ids that can be allocated.
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

// owner returns container c of pod p.
func (benchNode) owner(p, c int) device.Owner {
	return device.Owner{Namespace: fmt.Sprintf("team-%d", p%7), Pod: fmt.Sprintf("workload-with-a-usual-name-%d-x7k2p", p), Container: fmt.Sprintf("container-%d", c)}
}

// benchKubelet is the kubelet of a benchNode.
type benchKubelet struct {
	api.UnimplementedPodResourcesListerServer
	list        *api.ListPodResourcesResponse
	allocatable *api.AllocatableResourcesResponse
}

// List returns a constant response.
func (b *benchKubelet) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	return b.list, nil
}

// GetAllocatableResources returns a constant response.
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

// runListServer serves the kubelet's API until the parent process ends.
func runListServer(spec string) {
	var n benchNode
	if err := json.Unmarshal([]byte(spec), &n); err != nil {
		panic(err)
	}
	l, err := net.Listen("unix", n.Socket)
	if err != nil {
		panic(err)
	}
	old := time.Now().Add(-time.Hour) // a kubelet with a long uptime is trusted at once
	if err := os.Chtimes(n.Socket, old, old); err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	api.RegisterPodResourcesListerServer(s, n.kubelet())
	if err := s.Serve(l); err != nil {
		panic(err)
	}
}

// startKubelet starts the node's kubelet in a separate process.
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

// startProcesses starts a process in each container with a device, with cgroups as in /proc, and the kubelet's log links that name the
// containers.
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

// newBenchClient builds the exporter from the program's components, with real sockets on both sides.
func newBenchClient(tb testing.TB, n benchNode) *scrapeClient {
	tb.Helper()
	n.startKubelet(tb)
	log := slog.New(slog.DiscardHandler)
	machine := n.machine()
	state := &node.State{}
	state.Driver.Set(device.Driver{State: device.DriverUp})
	readers := device.NewReaders(machine)
	devices, err := machine.Devices(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	var statuses []device.Status
	for _, d := range devices {
		statuses = append(statuses, device.Status{Device: d, Healthy: true, Since: time.Now()})
	}
	state.Devices.Set(statuses)
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
	selfMetrics := exporter.NewSelfMetrics(registry, version, true)
	selfMetrics.OnResourceAdded(gpuResource)
	podResources, err := podresources.New(n.Socket, podresources.Options{Log: log, OnCall: selfMetrics.ObserveKubeletCall, Allocations: &state.Allocations})
	if err != nil {
		tb.Fatal(err)
	}
	e := exporter.New(exporter.Sources{
		Metrics: machine.Metrics(), State: state, Readers: readers, Processes: n.startProcesses(tb, machine, log),
		ListAllocations: podResources.ListAllocations,
	}, exporter.Options{Filter: filter})
	server := &http.Server{Handler: uncachedHandler(e, &state.Devices, statuses, exporter.HandlerOptions{TelemetryPath: "/metrics", Registry: registry, Log: log})}
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
