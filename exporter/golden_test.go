package exporter_test

import (
	"errors"
	"flag"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenNodes are the nodes with a golden scrape, by name.
var goldenNodes = map[string]struct {
	gpus    int
	options exporter.Options
	change  func(*scrapeFixture)
}{
	"gpus":       {9, exporter.Options{PodUID: true, DCGM: dcgm.Defaults(dcgm.V48), Hostname: "node-a"}, addGPUStates},
	"mig":        {1, exporter.Options{DCGM: dcgm.Defaults(dcgm.V48), Hostname: "node-a"}, addMIGDevices},
	"resources":  {0, exporter.Options{}, addResources},
	"rdma":       {0, exporter.Options{}, addRDMA},
	"no_kubelet": {2, exporter.Options{DCGM: dcgm.Defaults(dcgm.V48), Hostname: "node-a"}, removeKubelet},
	"stable": {1, exporter.Options{StableSeries: true, DCGM: dcgm.Defaults(dcgm.V48), Hostname: "node-a"}, func(d *scrapeFixture) {
		d.addEnergy("GPU-0", 1000)
		d.allocate("GPU-0::0=n/a/c", "GPU-0::1=n/b/c")
	}},
}

// TestGolden compares the series of each node with its golden file.
func TestGolden(t *testing.T) {
	help := regexp.MustCompile(`(?m)^# HELP .*\n`)
	for name, c := range goldenNodes {
		bubble.Test(t, func(t *testing.T) {
			d := newScrapeFixture(c.gpus)
			c.change(d)
			got := help.ReplaceAllString(scrape(t, d.handler(c.options)), "")
			testfile.CheckGolden(t, *update, "testdata/"+name+".prom", got)
		})
	}
}

// addGPUStates gives each GPU another state.
func addGPUStates(d *scrapeFixture) {
	then := time.Unix(1e9, 0)
	d.watts = 300
	d.publish(func(s []device.Status) {
		// GPU 0 is allocated to a pod with labels, whose names are unique and those of kube-state-metrics.
		// GPU 1 is idle. GPU 2 has several owners and processes. GPU 3 has two containers of a pod. The owner of GPU 4 has no name.
		s[5].Healthy, s[5].Health, s[5].Flaps, s[5].Reason, s[5].Since = false, device.Recovering, 3, "xid_79", then
		s[5].Xids = []device.Xid{{Code: 79, Count: 1, Last: then}, {Code: 145, Count: 4, Last: then, Nonfatal: true}}
		s[6].Healthy, s[6].Reason, s[6].Action = false, "xid_79", "reboot" // and is stalled
		s[7].Model, s[7].InfoLabels = "a \"quoted\"\nmodel\xff", []device.Label{{Name: "chassis_serial"}, {Name: "serial", Value: "1650"}}
		s[8].MIGEnabled, s[8].Healthy, s[8].Reason = true, false, "xid_79" // has no MIG devices
	})
	d.readErr["GPU-6"], d.stalled["GPU-6"] = device.ErrStalled, true
	d.allocate("GPU-0=team/train/main", "GPU-2::0=n/a/c", "GPU-2::1=n/b/c", "GPU-2::2=n/idle/c", "GPU-3::0=team/a/main",
		"GPU-3::1=team/a/side", "GPU-4=", "GPU-7=te\"am/po\nd\xff/c\\")
	var labels []device.Label
	for _, name := range []string{"app.kubernetes.io/name", "nodePool", "jobUID2Hash", "GPU", "a-b", "a_b_conflict2", "a.b"} {
		labels = append(labels, device.Label{Name: name, Value: name})
	}
	d.node.Pods.Set(pods.NewPods(&pods.Pod{Namespace: "team", Name: "train", UID: "u-1", Labels: labels}))
	// The usage of containers and the unattributed usage sum up to the device's. GPU 2 is not allocated to pod stranger.
	use := func(pid uint32, bytes, sm float64) device.ProcessUsage {
		return device.ProcessUsage{Device: "GPU-2", PID: pid, MemoryBytes: bytes, SM: sm, MemoryController: sm / 2}
	}
	d.processOwners = map[uint32]allocation.Owner{1: ownerOf("n/a/c"), 2: ownerOf("n/a/c"), 3: ownerOf("n/b/c"), 4: ownerOf("n/stranger/c")}
	d.uses = map[device.GPU][]device.ProcessUsage{
		"GPU-2": {use(1, 100, 0.25), use(2, 50, 0.25), use(3, 30, 0.125), use(4, 7, 0.0625), use(5, 3, 0)},
		"GPU-3": {memoryOnlyUse("GPU-3", 1, 100)},
	}
	d.extraSamples = []device.Sample{
		{Device: "GPU-0", Metric: memoryRow, Value: 3 << 20},
		{Device: "GPU-0", Metric: widthRow, Value: 16},
		{Device: "GPU-2", Metric: memoryRow, Value: 200},
	}
	d.node.Settings.Set(config.Settings{ExpectedGPUs: 10})
	d.node.StateFile.Set(state.WriteStatus{Used: true})
	train := ownerOf("team/train/main")
	d.node.Incidents.Set(incident.Snapshot{
		Incidents: make([]incident.Incident, 4),
		Devices: []incident.EventCount{
			{Device: "GPU-0", GPU: "GPU-0", Index: 5, Reason: "xid_79", Count: 2, Last: then}, // recorded with a different index
			{Device: "MIG-9", GPU: "GPU-9", Index: 3, Reason: "xid_94", Count: 1, Last: then}, // removed
			{Device: "GPU-8", Reason: "lost", Count: 1, Last: then},
		},
		Affected: []incident.EventCount{
			{Device: "GPU-0", GPU: "GPU-0", Owner: train, Reason: "xid_79", Count: 2, Last: then},
			{Device: "MIG-9", GPU: "GPU-9", Index: 3, Owner: train, Reason: "xid_94", Count: 1, Last: then},
			{Device: "GPU-0", GPU: "GPU-0", Owner: train, Reason: "xid_31", Count: 3, Last: then}, // of an application
		},
	})
}

// addMIGDevices partitions the GPU. MIG 0 and 1 are compute instances of one GPU instance. MIG 3 has the number of the
// removed instance of MIG 2, which is still allocated. The owner of MIG 5 is the only one of its GPU instance.
func addMIGDevices(d *scrapeFixture) {
	d.partition("1c.3g.40gb", "2c.3g.40gb", "1g.10gb", "1g.10gb", "1c.2g.20gb", "1c.2g.20gb", "1g.10gb")
	d.publish(func(s []device.Status) {
		s[2].GI = s[1].GI
		s[3].Healthy, s[3].Reason, s[3].Gone = false, "gone", true
		s[4].GI = s[3].GI
		s[6].GI = s[5].GI
	})
	d.watts = 300
	d.extraSamples = []device.Sample{
		{Device: "GPU-0", Metric: memoryRow, Value: 9 << 20},
		{Device: "MIG-0", Metric: memoryRow, Value: 1 << 20},
		{Device: "MIG-3", Metric: memoryRow, Value: 2 << 20},
		{Device: "MIG-4", Metric: memoryRow, Value: 3 << 20},
	}
	d.processOwners = map[uint32]allocation.Owner{1: ownerOf("n/a/c"), 2: ownerOf("n/b/c")}
	d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {
		memoryOnlyUse("MIG-0", 1, 100), memoryOnlyUse("MIG-1", 2, 200), memoryOnlyUse("MIG-1", 3, 50),
	}}
	d.allocate("MIG-0=n/a/c", "MIG-1=n/b/c", "MIG-2=n/old/c", "MIG-5=n/only/c")
}

// addResources adds resources of device plugins and of the kubelet.
func addResources(d *scrapeFixture) {
	owner := ownerOf("n/p/c")
	nic := func(id string, nodes ...int) allocation.ResourceDevice {
		return allocation.ResourceDevice{Resource: "example.com/nic", ID: id, NUMANodes: nodes}
	}
	d.allocations.Resources = allocation.NodeResources{
		AllocatableKnown: true,
		Allocatable: allocation.ResourceSet{
			Devices: []allocation.ResourceDevice{nic("eth0", 0), nic("eth1", 0), nic("eth2", 0, 1), nic("eth\"3")},
			CPUs:    []allocation.ExclusiveCPUs{{CPUs: []int64{2, 3, 4, 5, 6, 7}}},
			Memory:  []allocation.ReservedMemory{{Type: "hugepages-2Mi", Bytes: 4 << 20, NUMANodes: []int{1}}},
			Dropped: []allocation.DroppedIDs{{Resource: "example.com/big", IDs: 9000}},
		},
		Allocated: allocation.ResourceSet{
			Devices: []allocation.ResourceDevice{{Owner: owner, Resource: "example.com/nic", ID: "eth1", NUMANodes: []int{0}}},
			CPUs:    []allocation.ExclusiveCPUs{{Owner: owner, CPUs: []int64{7, 3, 2}}},
			Memory:  []allocation.ReservedMemory{{Owner: owner, Type: "memory", Bytes: 1 << 30, NUMANodes: []int{0}}},
			Claims:  []allocation.Claim{{Owner: owner, ClaimNamespace: "n", ClaimName: "p-gpu", Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0"}},
			Dropped: []allocation.DroppedIDs{{Resource: "example.com/big", IDs: 5000}},
		},
	}
}

// removeKubelet makes the owners of a GPU, and of a partitioned GPU, unknown: readings have empty labels.
func removeKubelet(d *scrapeFixture) {
	d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {memoryOnlyUse("GPU-0", 1, 100)}}
	whole := d.statuses[1]
	d.partition("1g.10gb")
	d.statuses = append(d.statuses, whole)
	d.publish(func(s []device.Status) { s[2].Healthy, s[2].Reason = false, "xid_48" })
	d.setAllocations(allocation.Snapshot{Err: errors.New("no kubelet")})
}

// memoryOnlyUse returns a usage of which the driver reports only the memory, as under MIG.
func memoryOnlyUse(d device.ID, pid uint32, bytes float64) device.ProcessUsage {
	return device.ProcessUsage{Device: d, PID: pid, MemoryBytes: bytes, SM: -1, MemoryController: -1, Encoder: -1, Decoder: -1}
}

// TestScrapesOfChanges checks what golden scrapes do not show: single changes of a state.
func TestScrapesOfChanges(t *testing.T) {
	statuses := newScrapeFixture(3).statuses
	removed := slices.Clone(statuses)
	removed[1].Gone = true
	for name, c := range map[string]struct {
		change func(*scrapeFixture)
		want   []string
	}{
		"a restarted kubelet, whose list is incomplete": {func(d *scrapeFixture) {
			d.setAllocations(allocation.Snapshot{At: time.Now()})
		}, []string{"power_watts GPU-0 - 0", "podgauge_kubelet_up 1", "!nvidia_gpu_alloc"}},
		"a partitioned GPU, allocated as a whole": {func(d *scrapeFixture) {
			d.partition("1g.10gb")
			d.allocate("GPU-0=team/train/main")
		}, []string{"power_watts GPU-0 team/train/main 0"}},
		"a GPU instance of containers of one pod": {func(d *scrapeFixture) {
			d.partition("1c.2g.20gb", "1c.2g.20gb")
			d.publish(func(s []device.Status) { s[2].GI = s[1].GI })
			d.extraSamples = []device.Sample{{Device: "MIG-0", Metric: memoryRow, Value: 1000}}
			d.allocate("MIG-0=team/a/main", "MIG-1=team/a/side")
		}, []string{"memory_used_bytes MIG-0 team/a/ 1000"}},
		"a partitioned GPU without a MIG device that exists": {func(d *scrapeFixture) {
			d.partition("1g.10gb")
			d.publish(func(s []device.Status) { s[1].Gone = true })
		}, []string{"healthy MIG-0 - 1", `DCGM_FI_DEV_POWER_USAGE` + dcgmLabels("-") + ` 0`}},
		"a process that ends during the scrape": {func(d *scrapeFixture) {
			d.extraSamples = []device.Sample{{Device: "GPU-0", Metric: memoryRow, Value: 1000}}
			d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {memoryOnlyUse("GPU-0", 1, 100)}}
			d.allocate("GPU-0=n/a/c")
			running := []map[uint32]allocation.Owner{{1: ownerOf("n/a/c")}, nil}
			d.onOwner = func() { d.processOwners, running = running[0], running[1:] } // each process is looked up once
		}, []string{"container_memory_used_bytes GPU-0 n/a/c 100", "unattributed_memory_used_bytes GPU-0 - 900"}},
		"processes that cannot be resolved": {func(d *scrapeFixture) {
			d.uses = map[device.GPU][]device.ProcessUsage{"GPU-0": {memoryOnlyUse("GPU-0", 1, 100)}}
			d.processesHidden = true
		}, []string{"up GPU-0 - 1", "!nvidia_gpu_container_", "!nvidia_gpu_unattributed_"}},
		"a full disk": {func(d *scrapeFixture) {
			d.node.StateFile.Set(state.WriteStatus{Used: true, Err: errors.New("disk full")})
		}, []string{"podgauge_state_up 0"}},
		"a removed GPU": {func(d *scrapeFixture) {
			d.node.Settings.Set(config.Settings{ExpectedGPUs: 3})
			d.node.Devices.Set(removed)
		}, []string{"podgauge_expected_gpus 3", "podgauge_missing_gpus 1"}},
		"more GPUs than expected": {func(d *scrapeFixture) {
			d.node.Settings.Set(config.Settings{ExpectedGPUs: 2})
			d.node.Devices.Set(statuses)
		}, []string{"podgauge_expected_gpus 2", "podgauge_missing_gpus 0"}},
		"expected GPUs before the first listing": {func(d *scrapeFixture) {
			d.node.Settings.Set(config.Settings{ExpectedGPUs: 8})
			d.node.Devices = device.Inventory{}
		}, []string{"podgauge_expected_gpus 8", "!podgauge_missing_gpus"}},
		"the long form of an address": {func(d *scrapeFixture) {
			d.publish(func(s []device.Status) { s[0].PCI = "00000001:1a:00.0" })
		}, []string{"DCGM_FI_DEV_POWER_USAGE" + strings.Replace(dcgmLabels("-"), "00000000:1A", "00000001:1A", 1) + " 0"}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			d := newScrapeFixture(1)
			c.change(d)
			assertSeries(t, scrape(t, d.handler(dcgmOptions)), c.want...)
		})
	}
}
