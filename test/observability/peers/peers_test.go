// Package peers compares podgauge with similar programs, alternately on the same machine, with the same NVML stand-in and kubelet.
package peers

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

var (
	write = flag.Bool("write", false, "write the table to docs/contributing/benchmarks.md")
	hour  = flag.Bool("hour", false, "also read memory after an hour; takes two more hours")
)

const page = "../../../docs/contributing/benchmarks.md"

// dcgmFamilies have 25 series per GPU, like dcgm-exporter's default set.
var dcgmFamilies = []string{
	"nvidia_gpu_memory_*", "nvidia_gpu_utilization_ratio", "nvidia_gpu_*coder_utilization_ratio",
	"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius", "nvidia_gpu_clock_hertz",
	"nvidia_gpu_pcie_*mit_bytes_total", "nvidia_gpu_pcie_receive_bytes_total", "nvidia_gpu_pcie_replays_total",
	"nvidia_gpu_remapped_rows", "nvidia_gpu_row_remap_failure", "nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_allocation_info",
}

// side is one of the two device plugins of the comparison.
type side struct {
	name    string
	command func(n *machine) []string
}

// comparison has the programs and the results.
type comparison struct {
	library  string
	rounds   int
	idle     time.Duration   // of each idle measurement
	loaded   []time.Duration // times after which memory is read
	sides    [2]side         // NVIDIA's plugin and podgauge
	dir      string          // folder of the peers
	podgauge string
	rows     []row
}

// row is a row of the table.
type row struct{ figure, peer, podgauge string }

func (c *comparison) add(figure string, cells [2]string) {
	c.rows = append(c.rows, row{figure, cells[0], cells[1]})
}

// TestPeers measures both sides and logs a table. PODGAUGE_PEERS is the folder of the peers (make bench-peers).
func TestPeers(t *testing.T) {
	dir := os.Getenv("PODGAUGE_PEERS")
	if dir == "" {
		t.Skip("PODGAUGE_PEERS is not set: make bench-peers")
	}
	c := newComparison(t, dir)
	for _, measurement := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Size", c.size},
		{"Start", c.start},
		{"Registration", c.registration},
		{"Xid", c.xid},
		{"Preferred", c.preferred},
		{"Idle", c.idleUsage},
		{"Memory", c.memory},
		{"Scrape", c.scrapes},
		{"Mapping", c.mapping},
		{"Growth", c.growth},
	} {
		t.Run(measurement.name, measurement.run)
	}
	table := c.table()
	t.Log("\n" + table)
	if *write && !t.Failed() {
		docs.CheckTables(t, true, page, map[string]string{"peers": table})
	}
}

func newComparison(t *testing.T, dir string) *comparison {
	t.Helper()
	unpacked := t.TempDir()
	nvidia := testfile.CopyUnpacked(t, filepath.Join(dir, "nvidia-device-plugin"), unpacked)
	podgauge := testfile.CopyUnpacked(t, "../../../bin/podgauge", unpacked)
	c := &comparison{dir: dir, library: nvmlLibrary(t), rounds: 50, idle: time.Minute, loaded: []time.Duration{2 * time.Minute}, podgauge: podgauge}
	if testing.Short() {
		c.rounds, c.idle, c.loaded = 3, 5*time.Second, []time.Duration{10 * time.Second}
	}
	if *hour {
		c.loaded = append(c.loaded, time.Hour)
	}
	c.sides = [2]side{
		{"NVIDIA's plugin 0.20.0", func(n *machine) []string {
			// The plugin's sockets are always in /var/lib/kubelet/device-plugins.
			const mount = `mount --bind "$0" /var/lib/kubelet && exec "$@"`
			return []string{"unshare", "--mount", "sh", "-c", mount, n.dir, nvidia, "--device-discovery-strategy=nvml", "--pass-device-specs=false"}
		}},
		{"podgauge", func(n *machine) []string { return c.podgaugeCommand(n, "127.0.0.1:0") }},
	}
	return c
}

func (c *comparison) podgaugeCommand(n *machine, address string) []string {
	return []string{
		c.podgauge, "--kubelet-dir=" + n.dir, "--device-plugin-dir=" + filepath.Join(n.dir, "device-plugins"),
		"--state-dir=" + filepath.Join(n.dir, "state"), "--web.listen-address=" + address, "--kernel-log=",
	}
}

// eachSide runs a measurement of both sides alternately.
func (c *comparison) eachSide(rounds int, measure func(side int)) {
	for round := range rounds {
		for i := range c.sides {
			measure((i + round) % len(c.sides))
		}
	}
}

// startSide starts a side on a new machine.
func (c *comparison) startSide(t *testing.T, i, gpus int) (*machine, *process) {
	t.Helper()
	n := newMachine(t, c.library, gpus)
	return n, startProcess(t, n, c.sides[i].command(n)...)
}

func (c *comparison) size(t *testing.T) {
	var cells [2]string
	for i := range c.sides {
		command := c.sides[i].command(&machine{})
		program := command[slices.IndexFunc(command, filepath.IsAbs)]
		info, err := os.Stat(program)
		require.NoError(t, err)
		cells[i] = fmt.Sprintf("%.1f MB", float64(info.Size())/1e6)
	}
	c.add("size of the program (MB of 10^6 bytes)", cells)
}

// start measures the time from the start of the process to the first device list in the kubelet.
func (c *comparison) start(t *testing.T) {
	var times, cpu [2][]time.Duration
	c.eachSide(c.rounds, func(i int) {
		t.Run("", func(t *testing.T) {
			n := newMachine(t, c.library, gpuCount)
			begin := time.Now()
			p := startProcess(t, n, c.sides[i].command(n)...)
			n.waitForHealthy(t, gpuCount)
			times[i] = append(times[i], time.Since(begin))
			p.kill()
			cpu[i] = append(cpu[i], p.totalCPU())
		})
	})
	var cells [2]string
	for i := range cells {
		cells[i] = fmt.Sprintf("%s; CPU p50 %s", percentiles(times[i]), inMilliseconds(percentile(cpu[i], 50)))
	}
	c.add("start of the process to first list", cells)
}

// registration measures the time from a new kubelet's socket to the registration and the device list.
func (c *comparison) registration(t *testing.T) {
	var times [2][]time.Duration
	var machines [2]*machine
	for i := range c.sides {
		machines[i], _ = c.startSide(t, i, gpuCount)
		machines[i].waitForHealthy(t, gpuCount)
	}
	c.eachSide(c.rounds, func(i int) {
		time.Sleep(200 * time.Millisecond)
		n := machines[i]
		require.NoError(t, n.kubelet.Restart(t.Context(), nil))
		begin := time.Now()
		n.waitForHealthy(t, gpuCount)
		times[i] = append(times[i], time.Since(begin))
	})
	c.add("kubelet's socket to registration and list", [2]string{percentiles(times[0]), percentiles(times[1])})
}

// xid measures the time from the driver's report of an Xid 79 to the device list in the kubelet.
func (c *comparison) xid(t *testing.T) {
	var times [2][]time.Duration
	c.eachSide((c.rounds+gpuCount-1)/gpuCount, func(i int) {
		t.Run("", func(t *testing.T) {
			n, p := c.startSide(t, i, gpuCount)
			n.waitForHealthy(t, gpuCount)
			time.Sleep(2 * time.Second) // until events are registered and the first checks are done
			for gpu := range gpuCount {
				time.Sleep(100 * time.Millisecond)
				require.NoError(t, n.scenario.Event(gpu, "xid 79"))
				begin := time.Now()
				n.waitForHealthy(t, gpuCount-1-gpu)
				times[i] = append(times[i], time.Since(begin))
			}
			p.kill()
		})
	})
	c.add("Xid 79 to Unhealthy at the kubelet", [2]string{percentiles(times[0]), percentiles(times[1])})
}

// preferred measures GetPreferredAllocation on the plugin's socket, for each size of a request.
func (c *comparison) preferred(t *testing.T) {
	var cells [2]string
	for i := range c.sides {
		n, p := c.startSide(t, i, gpuCount)
		n.waitForHealthy(t, gpuCount)
		time.Sleep(2 * time.Second)
		connection, err := grpc.NewClient("unix://"+n.pluginSocket(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		client := pluginapi.NewDevicePluginClient(connection)
		var ids []string
		for _, d := range n.kubelet.Resource(resource).Devices {
			ids = append(ids, d.ID)
		}
		var worst []time.Duration
		before := p.usage(t)
		for size := 1; size <= gpuCount; size++ {
			var times []time.Duration
			for range c.rounds {
				begin := time.Now()
				_, err := client.GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
					{AvailableDeviceIDs: ids, AllocationSize: int32(size)},
				}})
				require.NoError(t, err)
				times = append(times, time.Since(begin))
			}
			if percentile(times, 50) > percentile(worst, 50) {
				worst = times
			}
		}
		calls := p.usage(t).since(before).nvmlCalls / (gpuCount * c.rounds)
		cells[i] = fmt.Sprintf("%s; %d NVML calls each", percentiles(worst), calls)
		connection.Close()
		p.kill()
	}
	c.add("preferred allocation of 1 to 8 of 8 GPUs, the slowest size", cells)
}

// idleUsage measures a process without pods and scrapes.
func (c *comparison) idleUsage(t *testing.T) {
	var cells [2]string
	for i := range c.sides {
		t.Run(c.sides[i].name, func(t *testing.T) {
			n, p := c.startSide(t, i, gpuCount)
			n.waitForHealthy(t, gpuCount)
			time.Sleep(c.idle * 5 / 4) // podgauge takes GPM samples in the first minute
			before := p.usage(t)
			time.Sleep(c.idle)
			u, seconds := p.usage(t).since(before), c.idle.Seconds()
			resident, anonymous := p.memory(t)
			cells[i] = fmt.Sprintf("%.2f %%; %.0f; %.1f; %s", 100*u.cpu.Seconds()/seconds, float64(u.contextSwitches)/seconds,
				float64(u.nvmlCalls)/seconds, inMegabytes(resident, anonymous))
		})
	}
	c.add("idle, without pods: CPU; context switches a second; NVML calls a second; resident memory (anonymous)", cells)
}

// memory measures a process with 8 allocated GPUs and 110 pods; podgauge is scraped every second.
func (c *comparison) memory(t *testing.T) {
	cells := make([][2]string, len(c.loaded))
	for i := range c.sides {
		t.Run(c.sides[i].name, func(t *testing.T) {
			n := newMachine(t, c.library, gpuCount)
			address := program.FreeAddress(t)
			command := c.sides[i].command(n)
			if i == 1 {
				command = c.podgaugeCommand(n, address)
			}
			p := startProcess(t, n, command...)
			n.waitForHealthy(t, gpuCount)
			n.runPods(t, gpuCount, 110-gpuCount)
			for begin, k := time.Now(), 0; k < len(c.loaded); {
				if i == 1 {
					_, err := scrape("http://" + address + "/metrics")
					require.NoError(t, err)
				}
				time.Sleep(time.Second)
				if time.Since(begin) > c.loaded[k] {
					resident, anonymous := p.memory(t)
					cells[k][i] = inMegabytes(resident, anonymous)
					k++
				}
			}
		})
	}
	for k, after := range c.loaded {
		c.add(fmt.Sprintf("resident memory (anonymous) with 8 allocated GPUs and 110 pods, after %s", after),
			[2]string{cells[k][0] + ", not scraped", cells[k][1] + ", scraped every second"})
	}
}

// scrapes measures a scrape a second of podgauge and of nvidia_gpu_exporter.
func (c *comparison) scrapes(t *testing.T) {
	var cells [2]string
	for i, command := range [2]func(n *machine, address string) []string{
		func(_ *machine, address string) []string {
			return []string{filepath.Join(c.dir, "nvidia_gpu_exporter.bin"), "--collect.backend=nvml", "--web.listen-address=" + address}
		},
		c.podgaugeCommand,
	} {
		n, address := newMachine(t, c.library, gpuCount), program.FreeAddress(t)
		p := startProcess(t, n, command(n, address)...)
		if i == 1 {
			n.waitForHealthy(t, gpuCount)
			n.runPods(t, gpuCount, 110-gpuCount)
		}
		cpu, calls, _ := scrapeEachSecond(t, p, address, c.rounds)
		cells[i] = fmt.Sprintf("CPU %s; %d NVML calls", percentiles(cpu), calls)
		p.kill()
	}
	cells[0] = "nvidia_gpu_exporter 1.14.0, without pods: " + cells[0]
	c.add("a second with a scrape of all default families, 8 allocated GPUs, 110 pods", cells)
}

// scrapeEachSecond returns the CPU time of each second with a scrape, and NVML calls and series per scrape.
func scrapeEachSecond(t *testing.T, p *process, address string, scrapes int) (cpu []time.Duration, calls, series int) {
	t.Helper()
	time.Sleep(5 * time.Second)
	for range scrapes {
		before := p.usage(t)
		text, err := scrape("http://" + address + "/metrics")
		if err != nil {
			t.Fatalf("%v\n%s", err, p.log.String())
		}
		time.Sleep(time.Second)
		u := p.usage(t).since(before)
		cpu = append(cpu, u.cpu)
		calls += u.nvmlCalls
		series = len(seriesLine.FindAllString(text, -1))
	}
	return cpu, calls / scrapes, series
}

var seriesLine = regexp.MustCompile("(?m)^[a-z]")

// growth measures podgauge with more GPUs, each allocated to a pod, with more pods, and with all options.
func (c *comparison) growth(t *testing.T) {
	large, sysfs := t.TempDir(), t.TempDir()
	_, err := nvmltest.BuildLarge(large)
	require.NoError(t, err)
	for _, pods := range []int{110, 500} {
		for gpus := gpuCount; gpus <= nvmltest.LargeMaxGPUs; gpus *= 2 {
			library := c.library
			if gpus > nvmltest.MaxGPUs {
				library = large
			}
			c.addGrowth(t, fmt.Sprintf("%d GPUs, %d pods", gpus, pods), newMachine(t, library, gpus), gpus, pods)
		}
	}
	simulated, err := sim.NewVirtualNode(sim.NewMachine(nil, gpuCount, time.Now), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(simulated.Close)
	require.NoError(t, os.CopyFS(sysfs, simulated.Sysfs()))
	c.addGrowth(t, "8 GPUs, 8 NICs, 110 pods, all optional metrics and checks", newMachine(t, c.library, gpuCount), gpuCount, 110,
		"--metrics.set=full", "--metrics.dcgm=both", "--metrics.nvlink-links", "--metrics.pod-uid", "--metrics.labels-allowlist=*",
		"--metrics.rdma", "--metrics.cpu", "--path.sysfs="+sysfs, "--health.fabric-manager")
}

// addGrowth adds the row of a machine with options.
func (c *comparison) addGrowth(t *testing.T, figure string, n *machine, gpus, pods int, options ...string) {
	t.Helper()
	address := program.FreeAddress(t)
	p := startProcess(t, n, append(c.podgaugeCommand(n, address), options...)...)
	n.waitForHealthy(t, gpus)
	n.runPods(t, gpus, pods-gpus)
	cpu, _, series := scrapeEachSecond(t, p, address, min(c.rounds, 20))
	resident, anonymous := p.memory(t)
	p.kill()
	c.add(figure+": CPU of a scrape; series; memory", [2]string{"–", fmt.Sprintf("%s; %d; %s", percentiles(cpu), series, inMegabytes(resident, anonymous))})
}

// sharedConfig gives each GPU four replicas.
const sharedConfig = `{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}`

// mapping measures podgauge's scrape of 25 series per GPU, and dcgm-exporter's mapping and rendering of 25 series per GPU. Only podgauge's
// figures include readings and compression.
func (c *comparison) mapping(t *testing.T) {
	for _, shared := range []bool{false, true} {
		n, address := newMachine(t, c.library, gpuCount), program.FreeAddress(t)
		command, devices := append(c.podgaugeCommand(n, address), "--metrics.set=none", "--metrics.include="+strings.Join(dcgmFamilies, ",")), gpuCount
		if shared {
			devices = 4 * gpuCount
			file := filepath.Join(n.dir, "config.yaml")
			require.NoError(t, os.WriteFile(file, []byte(sharedConfig), 0o644))
			command = append(command, "--config-file="+file)
		}
		p := startProcess(t, n, command...)
		n.waitForHealthy(t, devices)
		n.runPods(t, devices, 110-devices)
		peer := c.dcgmMapping(t, n, shared)
		var times []time.Duration
		series := 0
		for range c.rounds {
			time.Sleep(1100 * time.Millisecond) // scrapes within a second share a collection
			before := p.usage(t)
			text, err := scrape("http://" + address + "/metrics")
			require.NoError(t, err)
			time.Sleep(50 * time.Millisecond)
			times = append(times, p.usage(t).since(before).cpu)
			series = strings.Count(text, "\nnvidia_gpu_")
		}
		p.kill()
		figure := "CPU of a scrape, 8 GPUs, 110 pods"
		if shared {
			figure = "CPU of a scrape, 8 GPUs with 4 replicas each, all allocated, 110 pods"
		}
		c.add(figure, [2]string{"dcgm-exporter 4.8.2: " + peer, fmt.Sprintf("%s; %d series", percentiles(times), series)})
	}
}

// dcgmMapping runs dcgm-exporter's mapping and rendering against the machine's kubelet.
func (c *comparison) dcgmMapping(t *testing.T, n *machine, shared bool) string {
	t.Helper()
	command := exec.Command(filepath.Join(c.dir, "dcgm-mapping"), "-test.run=TestMapping")
	command.Env = append(os.Environ(), fmt.Sprintf("PEERS_ROUNDS=%d", c.rounds), "PEERS_SOCKET="+n.kubelet.PodResourcesSocket(),
		"LD_LIBRARY_PATH="+n.library, "NVML_STANDIN="+n.scenarioFile)
	if shared {
		command.Env = append(command.Env, "PEERS_SHARED=1")
	}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var times []time.Duration
	series := 0
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 5 && fields[0] == "scrape" {
			times = append(times, time.Duration(parseInt(t, fields[1])))
			if series = parseInt(t, fields[3]); fields[4] == "0" {
				t.Fatalf("dcgm-exporter has no series with a pod:\n%s", out)
			}
		}
	}
	return fmt.Sprintf("%s; %d series", percentiles(times), series)
}

// table returns the results in Markdown.
func (c *comparison) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "On %s, %d CPUs (%s), %d repetitions of each time.\n\n", time.Now().Format(time.DateOnly), runtime.NumCPU(), cpuModel(), c.rounds)
	fmt.Fprintf(&b, "|figure|%s|%s|\n|---|---|---|\n", c.sides[0].name, c.sides[1].name)
	for _, r := range c.rows {
		fmt.Fprintf(&b, "|%s|%s|%s|\n", r.figure, r.peer, r.podgauge)
	}
	return b.String()
}

// percentile returns a percentile by nearest rank, 0 without times.
func percentile(times []time.Duration, percent int) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*percent+99)/100-1]
}

// percentiles formats the distribution of times.
func percentiles(times []time.Duration) string {
	return fmt.Sprintf("p50 %s, p99 %s", inMilliseconds(percentile(times, 50)), inMilliseconds(percentile(times, 99)))
}

func inMilliseconds(d time.Duration) string {
	ms := d.Seconds() * 1e3
	decimals := 2
	switch {
	case ms >= 100:
		decimals = 0
	case ms >= 10:
		decimals = 1
	}
	return fmt.Sprintf("%.*f ms", decimals, ms)
}

func inMegabytes(resident, anonymous int) string {
	return fmt.Sprintf("%.1f (%.1f) MB", float64(resident)/(1<<20), float64(anonymous)/(1<<20))
}
