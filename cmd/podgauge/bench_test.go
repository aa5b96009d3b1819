package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/device/nvml"
	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/sim"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// listServer, in the environment, has this test binary be a kubelet that answers
// List on the socket named: in a process of its own, so that what it allocates is
// not counted as ours.
const listServer = "PODGAUGE_TEST_LIST_SERVER"

// scraper, in the environment, has it be a Prometheus that scrapes the address so
// often, "<times> <url>", as fast as it is answered.
const scraper = "PODGAUGE_TEST_SCRAPER"

// The node that scrapes are measured on.
const (
	benchGPUs       = 8
	benchPods       = 110
	benchContainers = 2
)

// busyNode is a kubelet with many pods, the first of which hold the devices.
type busyNode struct {
	api.UnimplementedPodResourcesListerServer
	answer *api.ListPodResourcesResponse
}

func (b *busyNode) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	return b.answer, nil
}

func newBusyNode(ids []device.ID) *busyNode {
	answer := &api.ListPodResourcesResponse{}
	for p := range benchPods {
		pod := &api.PodResources{Name: fmt.Sprintf("workload-with-a-usual-name-%d-x7k2p", p), Namespace: fmt.Sprintf("team-%d", p%7)}
		for c := range benchContainers {
			container := &api.ContainerResources{Name: fmt.Sprintf("container-%d", c)}
			if c == 0 && p < len(ids) {
				container.Devices = []*api.ContainerDevices{{ResourceName: resource, DeviceIds: []string{string(ids[p])}}}
			}
			pod.Containers = append(pod.Containers, container)
		}
		answer.PodResources = append(answer.PodResources, pod)
	}
	return &busyNode{answer: answer}
}

// beListServer serves until its parent has gone.
func beListServer(socket string) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	long := time.Now().Add(-time.Hour) // a kubelet that has been up for long is trusted at once
	if err := os.Chtimes(socket, long, long); err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	api.RegisterPodResourcesListerServer(s, newBusyNode(sim.NewMachine(nil, benchGPUs, time.Now).IDs()))
	if err := s.Serve(l); err != nil {
		panic(err)
	}
}

// beScraper scrapes and ends.
func beScraper(order string) {
	var times int
	var url string
	if _, err := fmt.Sscan(order, &times, &url); err != nil {
		panic(err)
	}
	s := &scraped{client: http.DefaultClient}
	s.request, _ = http.NewRequest(http.MethodGet, url, http.NoBody)
	s.request.Header.Set("Accept-Encoding", "gzip")
	for range times {
		if err := s.scrapeOnce(); err != nil {
			panic(err)
		}
	}
}

// scraped is the exporter over real sockets on both sides, and a client of it.
type scraped struct {
	request *http.Request
	client  *http.Client
	series  int
	bytes   int
}

// newScraped builds it from the program's own parts, with so many of the rows.
// runtime says whether the families of the Go runtime and the process are scraped
// too.
func newScraped(tb testing.TB, rows int, runtime bool) *scraped {
	tb.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "kubelet.sock")
	kubelet := exec.Command(os.Args[0])
	kubelet.Env = append(os.Environ(), listServer+"="+socket)
	kubelet.Stderr = os.Stderr
	kubelet.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := kubelet.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { kubelet.Process.Kill(); kubelet.Wait() })

	log := slog.New(slog.DiscardHandler)
	machine := sim.NewMachine(nvml.Metrics()[:rows], benchGPUs, time.Now)
	board := &device.Board{}
	readers := device.NewReaders(machine)
	devices, err := machine.Devices(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	var statuses []device.Status
	for _, d := range devices {
		statuses = append(statuses, device.Status{Device: d, Healthy: true, Since: time.Now()})
	}
	board.Post(statuses)
	registry := prometheus.NewRegistry()
	own := exporter.NewOwn(registry, version, true)
	own.Offers(resource)
	if !runtime {
		registry.Unregister(collectors.NewGoCollector())
		registry.Unregister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	holders, err := podresources.New(socket, log, podresources.Trace{Called: own.Asked})
	if err != nil {
		tb.Fatal(err)
	}
	e := exporter.New(exporter.Sources{
		Metrics: machine.Metrics(), Look: board.Look, Read: readers.Read, Stalled: readers.Stalled,
		Owners: holders.Owners, Held: holders.Look, Driver: func() device.Driver { return device.Driver{State: device.DriverUp} },
	}, exporter.Options{})
	server := &http.Server{Handler: fresh(e, board, statuses, exporter.Server{TelemetryPath: "/metrics", Registry: registry, Log: log})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	go server.Serve(listener)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tb.Cleanup(func() { server.Close(); e.Drain(); holders.Run(ctx); http.DefaultClient.CloseIdleConnections() })

	s := &scraped{client: http.DefaultClient}
	s.request, err = http.NewRequest(http.MethodGet, "http://"+listener.Addr().String()+"/metrics", http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	s.request.Header.Set("Accept-Encoding", "gzip")
	until(tb, "the holders are shown", func() bool {
		text := s.text(tb)
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				s.series++
			}
		}
		return strings.Count(text, `nvidia_gpu_allocation_info{`) == benchGPUs
	})
	s.series = 0
	for line := range strings.Lines(s.text(tb)) {
		if !strings.HasPrefix(line, "#") {
			s.series++
		}
	}
	return s
}

// fresh makes each scrape fly: one within a second of another would share.
func fresh(e *exporter.Exporter, board *device.Board, statuses []device.Status, s exporter.Server) http.Handler {
	h := e.Handler(s)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		board.Post(statuses)
		h.ServeHTTP(w, r)
	})
}

func until(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	for end := time.Now().Add(deadline); !is(); <-poll.C {
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %s", deadline, what)
		}
	}
}

// scrape asks once and drops the answer as it comes.
func (s *scraped) scrape(tb testing.TB) {
	if err := s.scrapeOnce(); err != nil {
		tb.Fatal(err)
	}
}

func (s *scraped) scrapeOnce() error {
	answer, err := s.client.Do(s.request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Encoding") != "gzip" {
		return fmt.Errorf("status %d, %w, encoding %q", answer.StatusCode, err, answer.Header.Get("Content-Encoding"))
	}
	s.bytes = int(n)
	return nil
}

// scrapeElsewhere has another process scrape, so that the client costs this one
// nothing.
func (s *scraped) scrapeElsewhere(tb testing.TB, times int) {
	client := exec.Command(os.Args[0])
	client.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", scraper, times, s.request.URL))
	client.Stderr = os.Stderr
	if err := client.Run(); err != nil {
		tb.Fatal(err)
	}
}

func (s *scraped) text(tb testing.TB) string {
	answer, err := s.client.Do(s.request)
	if err != nil {
		tb.Fatal(err)
	}
	defer answer.Body.Close()
	z, err := gzip.NewReader(answer.Body)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// cpu is what this process has used.
func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fewRows make 200 series of 8 GPUs, together with the families that no row makes:
// what dcgm-exporter's default set has.
const fewRows = 13

// BenchmarkScrape is a whole scrape over real sockets: 8 GPUs, List of 110 pods of
// two containers, gzip. Kubelet and Prometheus are processes of their own; what is
// left is podgauge's, its CPU time as cpu-µs/op.
func BenchmarkScrape(b *testing.B) {
	all := len(nvml.Metrics())
	for _, c := range []struct {
		name    string
		rows    int
		runtime bool
	}{
		{"gpus=8/few", fewRows, false}, {"gpus=8/all", all, false}, {"gpus=8/all_with_go_and_process", all, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newScraped(b, c.rows, c.runtime)
			b.ReportAllocs()
			s.scrape(b)
			b.ResetTimer()
			began := cpu(b)
			s.scrapeElsewhere(b, b.N)
			b.ReportMetric(float64((cpu(b)-began).Microseconds())/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(s.series), "series")
			b.ReportMetric(float64(s.bytes), "bytes")
		})
	}
}

// mostAllocations of one scrape, HTTP's on both sides and gRPC's included.
const mostAllocations = 550

// TestScrapeAllocations pins what a scrape allocates.
func TestScrapeAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates too; make test runs this one without it")
	}
	s := newScraped(t, len(nvml.Metrics()), false)
	if n := testing.AllocsPerRun(200, func() { s.scrape(t) }); n > mostAllocations {
		t.Errorf("a scrape of %d series makes %.0f allocations, want %d at most", s.series, n, mostAllocations)
	} else {
		t.Logf("%d series, %d bytes, %.0f allocations", s.series, s.bytes, n)
	}
}
