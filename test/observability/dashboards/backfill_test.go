package dashboards

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Some rules evaluate hours. promtool creates blocks for this time: constant series of a node's first scrape, except for the series of
// backfillRules.
const (
	backfillDuration = 3*time.Hour + 10*time.Minute
	backfillStep     = 2 * time.Minute
)

// backfillRule changes the past values of series with a prefix. The value is a function of the age.
type backfillRule struct {
	series string // prefix
	value  func(ago time.Duration) string
}

// lastGPU is the node's last whole GPU.
const lastGPU = "GPU-0000a106-5eed-4000-8000-000000000006"

// backfillRules are the past values for alerts that evaluate hours.
var backfillRules = []backfillRule{
	// PodgaugeDeviceFlapping: a device that recovered four times within three hours.
	{`nvidia_gpu_health_flaps_total{`, func(ago time.Duration) string {
		return fmt.Sprint(int((backfillDuration - ago) / (45 * time.Minute)))
	}},
}

// pastSeries are series of node-a that no script produces, by alert. They end when Prometheus starts, and remain visible for five minutes. The
// value is a function of the age and the time.
type pastSeries struct {
	name  string
	value func(ago time.Duration, now time.Time) float64
}

// allPastSeries returns the series for alerts that evaluate days, many nodes, or what the simulator lacks.
func allPastSeries() (all []pastSeries) {
	const target = `cluster="east",node="node-a",`
	add := func(value float64, format string, args ...any) {
		all = append(all, pastSeries{fmt.Sprintf(format, args...), func(time.Duration, time.Time) float64 { return value }})
	}
	addSince := func(age time.Duration, uuid string) {
		name := fmt.Sprintf(`nvidia_gpu_health_since_timestamp_seconds{%suuid=%q,mig_uuid=""}`, target, uuid)
		all = append(all, pastSeries{name, func(_ time.Duration, now time.Time) float64 { return float64(now.Add(-age).Unix()) }})
	}
	device := func(uuid, infoLabels string) {
		add(1, `nvidia_gpu_info{%sgpu="9",uuid=%q,mig_uuid="",pci_bus_id=%q%s}`, target, uuid, uuid, infoLabels)
	}
	// PodgaugeFleetFailing, and with a second node PodgaugeFleetUnhealthy.
	for i := range 20 {
		uuid := fmt.Sprintf("GPU-past-%d", i)
		device(uuid, "")
		add(1, `nvidia_gpu_unhealthy_info{%sgpu="9",uuid=%q,mig_uuid="",reason="xid_119",action="reset_gpu"}`, target, uuid)
		addSince(0, uuid)
	}
	const other = `cluster="east",node="node-d",`
	add(1, `kube_node_info{%sinternal_ip="192.0.2.1"}`, other)
	add(1, `nvidia_gpu_info{%sgpu="0",uuid="GPU-past",mig_uuid="",pci_bus_id="GPU-past"}`, other)
	add(1, `nvidia_gpu_unhealthy_info{%sgpu="0",uuid="GPU-past",mig_uuid="",reason="xid_119",action="reset_gpu"}`, other)
	// PodgaugeRetiredTooLong.
	device("GPU-retired", "")
	add(1, `nvidia_gpu_unhealthy_info{%sgpu="9",uuid="GPU-retired",mig_uuid="",reason="retired",action=""}`, target)
	addSince(15*24*time.Hour, "GPU-retired")
	// PodgaugeDriverSkew and PodgaugeVbiosSkew.
	device("GPU-skew-1", `,model="past",driver_version="1",vbios_version="1"`)
	device("GPU-skew-2", `,model="past",driver_version="2",vbios_version="2"`)
	// PodgaugeUnattributedProcesses, PodgaugeMigWithoutDevices, PodgaugeCdiSpecMissing and PodgaugeKubernetesRequestsFailed.
	add(2, `nvidia_gpu_unattributed_processes{%sgpu="9",uuid="GPU-skew-1",mig_uuid=""}`, target)
	add(9e9, `nvidia_gpu_unattributed_memory_used_bytes{%sgpu="9",uuid="GPU-skew-1",mig_uuid=""}`, target)
	add(1, `nvidia_gpu_unallocatable_info{%sgpu="9",uuid="GPU-skew-2",mig_uuid="",reason="no_mig_devices"}`, target)
	add(0, `podgauge_cdi_spec_up{%sclass="past"}`, target)
	requests := `podgauge_kubernetes_requests_total{` + target + `code="403"}`
	all = append(all, pastSeries{requests, func(ago time.Duration, _ time.Time) float64 { return (backfillDuration - ago).Minutes() }})
	// PodgaugeUnallocatedMemoryUsed.
	add(9e9, `nvidia_gpu_memory_used_bytes{%sgpu="9",uuid="GPU-skew-2",mig_uuid=""}`, target)
	add(0, `nvidia_gpu_allocated{%sgpu="9",uuid="GPU-skew-2",mig_uuid=""}`, target)
	// PodgaugeDeviceMissing and PodgaugeNvlinkDown: the recorded series of the past.
	removed := `device:podgauge_not_retired:max1d{` + target + `gpu="8",uuid="GPU-removed",mig_uuid="",pci_bus_id="GPU-removed"}`
	all = append(all, pastSeries{removed, func(_ time.Duration, now time.Time) float64 { return float64(now.Unix()) }})
	for i := range 8 {
		add(18, `gpu_model:podgauge_nvlink_links_expected:max7d{%suuid="GPU-0000a10%d-5eed-4000-8000-00000000000%d",model="NVIDIA H100 80GB HBM3"}`, target, i, i)
	}
	return all
}

// yesterday is a series of node-b a day ago, for PodgaugeAllocatableDropped.
const yesterday = `podgauge_plugin_devices{cluster="west",node="node-b",resource="nvidia.com/gpu",health="healthy"} 99`

// backfill creates blocks of a node's past in data.
func backfill(t *testing.T, dir, data string, n *simNode, scrape string, now time.Time) (samples int) {
	t.Helper()
	name := filepath.Join(dir, "past.txt")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text := bufio.NewWriter(file)
	series, past := seriesOf(scrape, n), allPastSeries()
	for ago := 4 * time.Minute; ago > -8*time.Minute; ago -= backfillStep {
		fmt.Fprintf(text, "%s %d\n", yesterday, now.Add(-24*time.Hour-ago).Unix())
	}
	for ago := backfillDuration; ago > 0; ago -= backfillStep {
		for _, s := range series {
			fmt.Fprintf(text, "%s %s %d\n", s.name, s.value(ago), now.Add(-ago).Unix())
			samples++
		}
		for _, s := range past {
			fmt.Fprintf(text, "%s %g %d\n", s.name, s.value(ago, now), now.Add(-ago).Unix())
			samples++
		}
	}
	fmt.Fprintln(text, "# EOF")
	if err := text.Flush(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", name, data).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	return samples
}

// backfillSeries is a series of the past.
type backfillSeries struct {
	name, current string
	rule          *backfillRule
}

func (w backfillSeries) value(ago time.Duration) string {
	if w.rule == nil {
		return w.current
	}
	return w.rule.value(ago)
}

// seriesOf returns the series of a scrape with their target labels.
func seriesOf(scrape string, n *simNode) (all []backfillSeries) {
	for line := range strings.Lines(scrape) {
		end := strings.LastIndex(line, " ")
		if strings.HasPrefix(line, "#") || end < 0 {
			continue
		}
		name, value := withTargetLabels(line[:end], n), strings.TrimSpace(line[end:])
		all = append(all, backfillSeries{name, value, nil})
		for i := range backfillRules {
			p := &backfillRules[i]
			if strings.HasPrefix(line, p.series) && strings.Contains(line, `uuid="`+lastGPU+`"`) {
				all[len(all)-1].rule = p
			}
		}
	}
	return all
}

// withTargetLabels returns a series with the labels of its target.
func withTargetLabels(series string, n *simNode) string {
	target := fmt.Sprintf(`cluster=%q,node=%q,instance=%q,job="podgauge"`, n.cluster, n.name, n.address)
	name, labels, ok := strings.Cut(series, "{")
	if !ok {
		return name + "{" + target + "}"
	}
	return name + "{" + target + "," + labels
}
