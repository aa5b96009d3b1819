package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/prometheus/common/model"
)

// jobConditions are the series of podgauge.jobs.yaml about a job, from
// Prometheus.
type jobConditions struct {
	Waiting    []jobWaiting   `json:"waiting,omitempty"`
	Stragglers []jobStraggler `json:"stragglers,omitempty"` // the slowest first
}

// jobWaiting is a workload, the job or one of its pods, whose GPUs wait.
type jobWaiting struct {
	Workload string     `json:"workload"`
	Since    time.Time  `json:"since"`
	GPUs     int        `json:"gpus"`               // of the workload; 0: unknown
	Evidence string     `json:"evidence,omitempty"` // activity or power
	Culprit  *jobDevice `json:"culprit,omitempty"`  // the only GPU that does not wait
}

// jobDevice is a GPU, or a port of an RDMA device.
type jobDevice struct {
	Node   string    `json:"node"`
	GPU    string    `json:"gpu,omitempty"`
	Device device.ID `json:"device"`         // UUID, or the RDMA device: mlx5_0
	Port   string    `json:"port,omitempty"` // of the RDMA device
	Pod    string    `json:"pod"`
}

// jobStraggler is a device that deviates from the median of the workload's
// devices.
type jobStraggler struct {
	jobDevice
	Reason    string  `json:"reason"`
	Deviation float64 `json:"deviation"` // a fraction of the median; of throttling, of time
}

func newJobDevice(m model.Metric) jobDevice {
	return jobDevice{
		Node: string(m["node"]), GPU: string(m["gpu"]), Device: device.ID(cmp.Or(m["uuid"], m["device"])),
		Port: string(m["port"]), Pod: string(m["pod"]),
	}
}

// jobConditions queries the conditions of a job and its pods. Without the
// rules, there are none.
func (q *promQuery) jobConditions(pods *jobPods) (c jobConditions) {
	matchers := fmt.Sprintf("namespace=%q,workload=~%q", pods.namespace, pods.workloads())
	sizes := map[model.LabelValue]int{}
	for _, sample := range q.vector(q.now, "workload:podgauge_gpus:count{%s}", matchers) {
		sizes[sample.Metric["workload"]] = int(sample.Value)
	}
	add := func(sample *model.Sample, culprit *jobDevice) {
		workload := sample.Metric["workload"]
		c.Waiting = append(c.Waiting, jobWaiting{
			string(workload), sampleTime(sample), sizes[workload], string(sample.Metric["evidence"]), culprit,
		})
	}
	for _, sample := range q.vector(q.now,
		"workload_evidence:podgauge_waiting_since_timestamp_seconds:min{%s}", matchers) {
		add(sample, nil)
	}
	for _, sample := range q.vector(q.now,
		"gpu_workload:podgauge_culprit_since_timestamp_seconds:min{%s}", matchers) {
		add(sample, new(newJobDevice(sample.Metric)))
	}
	for _, sample := range q.vector(q.now,
		"gpu_workload_model_reason:podgauge_straggler:deviation10m{%[1]s} or "+
			"port_workload_model_reason:podgauge_straggler:deviation10m{%[1]s}", matchers) {
		c.Stragglers = append(c.Stragglers,
			jobStraggler{newJobDevice(sample.Metric), string(sample.Metric["reason"]), float64(sample.Value)})
	}
	slices.SortFunc(c.Stragglers, func(a, b jobStraggler) int {
		return cmp.Or(cmp.Compare(math.Abs(b.Deviation), math.Abs(a.Deviation)),
			cmp.Compare(a.Device, b.Device), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason))
	})
	return c
}

// workloads returns a regular expression for the label workload: the job, or the
// jobs of the selected pods, and the pods, which are workloads of their own
// without the label of the job.
func (j *jobPods) workloads() string {
	var names []string
	if j.selector == nil {
		names = append(names, "job/"+j.name)
	}
	for i := range j.live {
		names = append(names, j.live[i].Name)
		for _, label := range allocation.JobLabels {
			value := j.live[i].Labels[label]
			if value != "" && (j.selector != nil || label == allocation.RayClusterLabel) {
				names = append(names, "job/"+value)
			}
		}
	}
	slices.Sort(names)
	return anyOf(slices.Compact(names))
}

// slowReasons are the reasons of stragglers in words.
var slowReasons = map[string]string{
	"sm_clock": "SM clock", "power": "power", "pcie_link": "PCIe link", "rdma_rate": "rate of the link",
	"nvlink_links": "number of NVLinks", "nvlink_speed": "NVLink speed",
}

// summary returns the conditions in words.
func (c *jobConditions) summary() (lines []string) {
	for _, w := range c.Waiting {
		all := "all GPUs"
		switch {
		case w.Culprit != nil:
			all += " but " + w.Culprit.String()
		case w.GPUs > 0:
			all = "all " + text.Plural(w.GPUs, "GPU")
		}
		idle := "power"
		if w.Evidence == "activity" {
			idle = "tensor cores and power"
		}
		lines = append(lines, fmt.Sprintf("%s: %s wait since %s: utilization 100 %%, %s near idle",
			w.Workload, all, w.Since.Local().Format("2006-01-02 15:04"), idle))
	}
	for _, s := range c.Stragglers {
		percent := 100 * math.Abs(s.Deviation)
		line := fmt.Sprintf("slow: %s: %s %.0f %% below the median",
			s.jobDevice, cmp.Or(slowReasons[s.Reason], s.Reason), percent)
		if s.Reason == "throttling" {
			line = fmt.Sprintf("slow: %s: throttled for %.0f %% of the time more than the median", s.jobDevice, percent)
		}
		lines = append(lines, line)
	}
	return lines
}

func (d jobDevice) String() string {
	name := "GPU " + d.GPU
	if d.Port != "" {
		name = fmt.Sprintf("RDMA port %s/%s", d.Device, d.Port)
	}
	return fmt.Sprintf("%s on node %s (%s)", name, d.Node, d.Pod)
}
