package main

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const jobSetLabel = "jobset.sigs.k8s.io/jobset-name"

// newJobPod returns a pod of the JobSet research/train. exit is the exit code of its end; 0: it runs.
func newJobPod(name, node string, exit int32, ended time.Time) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "research", Labels: map[string]string{jobSetLabel: "train", "team": "blue"}}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	status := corev1.ContainerStatus{Name: "main"}
	if exit > 0 {
		p.Status.Phase = corev1.PodFailed
		status.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: exit, Reason: "Error", FinishedAt: metav1.NewTime(ended)}
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	return p
}

// affect adds an incident with one affected container to a node.
func (n *fakeNode) affect(at time.Time, gpu, reason, action, pod string, w *allocation.Workload) *incident.Incident {
	i := incident.Incident{
		ID: uint64(at.UnixMilli()), First: at, Last: at, Count: 1, Device: device.ID(gpu), GPU: device.GPU(gpu), Reason: reason, Action: action,
		MarkedUnhealthy: action != "",
		Affected: []incident.AffectedContainer{{
			Owner: allocation.Owner{Namespace: "research", Pod: pod, Container: "main"}, Workload: w, Since: at.Add(-time.Hour),
		}},
	}
	n.incidents.Incidents = append([]incident.Incident{i}, n.incidents.Incidents...)
	return &n.incidents.Incidents[0]
}

// newJobCluster returns the JobSet research/train: train-0 is gone after a fault on node-a, and the others follow. Yesterday's job of the
// same name had a fault, too.
func newJobCluster(t *testing.T) (c *fakeCluster, now time.Time) {
	now = time.Now()
	at := func(minutes float64) time.Time { return now.Add(-time.Duration(minutes * float64(time.Minute))) }
	a, b := healthyNode(now), healthyNode(now)
	a.devices.Devices = []api.DeviceJSON{newDevice(gpu1, gpu1, 1)}
	a.devices.Devices[0].Health = "unhealthy"
	w := &allocation.Workload{Controller: allocation.Controller{Kind: "Job", Name: "train-workers-0"}, Labels: map[string]string{jobSetLabel: "train"}}
	a.affect(at(24*60), gpu1, "xid_48", "reset_gpu", "train-0", w).RecoveredAt = new(at(20 * 60))
	exit := int32(139)
	a.affect(at(10), gpu1, "xid_79", "reboot", "train-0", w).Affected[0].Termination = &incident.PodTermination{Phase: "Failed", Reason: "Error", ExitCode: &exit}
	a.affect(at(10), gpu1, "xid_79", "reboot", "other", nil)
	b.affect(at(30), gpu0, "xid_13", "", "train-1", nil)
	b.affect(at(9), gpu0, "xid_31", "", "train-1", nil)
	b.affect(at(5), gpu1, "xid_94", "reset_gpu", "train-3", w).HPCJobs = []string{"77"}
	c = newFakeCluster(t, map[string]*fakeNode{"node-a": a, "node-b": b})
	c.otherPods = []corev1.Pod{
		newJobPod("train-1", "node-b", 1, at(8)), newJobPod("train-2", "node-b", 137, at(7)), newJobPod("train-3", "node-b", 0, now),
		newJobPod("train-4", "node-c", 1, at(60)), newJobPod("train-5", "node-c", 0, now),
	}
	other := newJobPod("other", "node-a", 0, now)
	other.Labels = map[string]string{jobSetLabel: "other"}
	c.otherPods = append(c.otherPods, other)
	c.created = map[string]time.Time{"/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets/train": at(120)}
	return c, now
}

// TestJob checks that the first fault of a job comes with device, cause and action, and then what followed, gone pods included; an earlier
// job of the name, other jobs and earlier ends are left out.
func TestJob(t *testing.T) {
	c, _ := newJobCluster(t)
	for name, args := range map[string][]string{"job": {"job", "train"}, "job_wide": {"job", "train", "-o=wide"}} {
		out, errs, status := c.run(nil, append(args, "-n=research")...)
		if status != cli.ExitOK || errs != "" {
			t.Errorf("%s: got status %d, %s", name, status, errs)
		}
		testfile.CheckGolden(t, *update, "testdata/"+name+".txt", out)
	}
	out, _, _ := c.run(nil, "job", "train", "-n=research", "-o=json")
	var d jobDocument
	if err := json.Unmarshal([]byte(out), &d); err != nil || d.FirstFault == nil || d.FirstFault.Pod != "train-0" || d.Pods != 6 || d.Nodes != 3 || len(d.Events) != 5 {
		t.Errorf("got %v, %s", err, out)
	}
	if out, _, _ = c.run(nil, "job", "train", "-n=research", "-o=yaml"); !strings.Contains(out, "first_fault:\n") {
		t.Error(out)
	}
	// without the JobSet, the fault of yesterday is the first
	c.created = nil
	if out, _, _ = c.run(nil, "job", "train", "-n=research"); !strings.Contains(out, "Xid 48") {
		t.Error(out)
	}
	if out, _, _ = c.run(nil, "job", "train", "-n=research", "--since=6m"); !strings.Contains(out, "Xid 94") || strings.Contains(out, "Xid 79") {
		t.Error(out)
	}
}

// TestJobSelection finds the same fault by the other names of a job.
func TestJobSelection(t *testing.T) {
	for name, w := range map[string]*allocation.Workload{
		"job by controller": {Controller: allocation.Controller{Kind: "Job", Name: "j"}},
		"job by label":      {Labels: map[string]string{"batch.kubernetes.io/job-name": "j"}},
		"MPIJob":            {Labels: map[string]string{"training.kubeflow.org/job-name": "j"}},
		"LeaderWorkerSet":   {Labels: map[string]string{"leaderworkerset.sigs.k8s.io/name": "j"}},
		"RayCluster":        {Labels: map[string]string{"ray.io/cluster": "j"}},
		"RayJob":            {Labels: map[string]string{"ray.io/cluster": "j-x7k2p"}},
		"older RayJob":      {Labels: map[string]string{"ray.io/cluster": "j-raycluster-x7k2p"}},
		"Slinky":            {Labels: map[string]string{"scheduler.slinky.slurm.net/slurm-jobid": "j"}},
		"label":             {Labels: map[string]string{"a": "b"}},
	} {
		node := healthyNode(time.Now())
		node.affect(time.Now().Add(-time.Hour), gpu0, "xid_79", "reboot", "p-0", w)
		node.affect(time.Now().Add(-2*time.Hour), gpu0, "xid_48", "reset_gpu", "p-1", &allocation.Workload{Labels: map[string]string{"ray.io/cluster": "j-other-x7k2p"}})
		c := newFakeCluster(t, map[string]*fakeNode{"n": node})
		args := []string{"job", "-n=research", "j"}
		if name == "label" {
			args = []string{"job", "-n=research", "-l", "a in (b, c)"}
		}
		if out, errs, status := c.run(nil, args...); status != cli.ExitOK || errs != "" || !strings.Contains(out, "Xid 79") || strings.Contains(out, "xid_48") {
			t.Errorf("%s: got status %d, %s%s", name, status, out, errs)
		}
	}
}

// TestSlurmJob finds the faults of a Slurm job by the mapping files, on a node with and one without Kubernetes.
func TestSlurmJob(t *testing.T) {
	now := time.Now()
	worker, bare := healthyNode(now), healthyNode(now)
	worker.affect(now.Add(-time.Hour), gpu0, "xid_79", "reboot", "slurmd-0", nil).HPCJobs = []string{"76", "77"}
	worker.affect(now.Add(-2*time.Hour), gpu0, "xid_48", "reset_gpu", "slurmd-0", nil).HPCJobs = []string{"75"}
	unowned := bare.affect(now.Add(-30*time.Minute), gpu1, "xid_94", "reset_gpu", "", nil)
	unowned.HPCJobs, unowned.Affected = []string{"77"}, nil
	c := newFakeCluster(t, map[string]*fakeNode{"bare": bare, "worker": worker})
	out, errs, status := c.run(nil, "job", "77", "-n=slurm", "-o=wide", "--no-headers")
	if status != cli.ExitOK || errs != "" || strings.Count(out, "\n") != 2 || !strings.Contains(out, "76,77") || !strings.Contains(out, "later fault  bare    0  -         -") {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
}

// TestJobWithoutFault checks the line without a fault of the hardware.
func TestJobWithoutFault(t *testing.T) {
	c, now := newJobCluster(t)
	c.nodes["node-a"].incidents.Incidents = nil
	c.nodes["node-b"].incidents.Incidents = nil
	const line = "research/train: no fault of the hardware affected 5 pods on 2 nodes"
	if out, errs, status := c.run(nil, "job", "train", "-n=research"); status != cli.ExitOK || errs != "" || out != line+"\n" {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
	c.nodes["node-b"].affect(now, gpu0, "xid_31", "", "train-1", nil)
	if out, _, _ := c.run(nil, "job", "-l=team=blue", "-n=research"); !strings.HasPrefix(out, strings.Replace(line, "train", "team=blue", 1)+", but 1 application error\nWHEN ") {
		t.Error(out)
	}
	c.nodes["node-b"].affect(now, gpu0, "retired", "", "train-1", nil)
	c.nodes["node-a"].serve = unreachable
	if out, _, status := c.run(nil, "job", "train", "-n=research"); status != cli.ExitError || !strings.HasPrefix(out, line+", but 1 application error, as far as known\n") {
		t.Errorf("got status %d, %s", status, out)
	}
	c.nodes["node-a"].serve = nil
	if out, errs, status := c.run(nil, "job", "none", "-n=research"); status != cli.ExitError || out != "" ||
		errs != "research/none: no pod, and no incident of one; for pods of deleted nodes, set --prometheus\n" {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
	for args, want := range map[string]string{
		"job": "error: expected the name of a job, or --selector\n", "job a -l b=c": "error: expected the name of a job, or --selector\n",
		"job -l ==": "error: --selector: ", "job a --since=-1h": "error: --since -1h0m0s: expected a positive duration\n",
	} {
		if _, errs, status := c.run(nil, strings.Fields(args)...); status != cli.ExitUsage || !strings.HasPrefix(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: got status %d, %s", args, status, errs)
		}
	}
}

// TestJobWithInformation checks that reports of the hardware about repairs, such as Xid 63, are no faults: later ends are no consequences.
func TestJobWithInformation(t *testing.T) {
	c, now := newJobCluster(t)
	a, b := c.nodes["node-a"], c.nodes["node-b"]
	c.created, a.incidents.Incidents, b.incidents.Incidents = nil, nil, nil
	b.affect(now.Add(-72*time.Hour), gpu0, "xid_63", "", "train-1", nil)
	const line = "research/train: no fault of the hardware affected 5 pods on 2 nodes"
	run := func() string {
		out, errs, status := c.run(nil, "job", "train", "-n=research")
		if status != cli.ExitOK || errs != "" {
			t.Errorf("got status %d, %s", status, errs)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	if out := run(); !strings.HasPrefix(out, line+" WHEN ") || !strings.HasSuffix(out, "3 days ago information node-b 0 train-1 main xid_63 gone - -") {
		t.Error(out)
	}
	a.affect(now.Add(-10*time.Minute), gpu1, "xid_79", "reboot", "train-3", nil)
	out := run()
	for _, want := range []string{
		"the first fault is of GPU 1 on node node-a, 10 min ago", "information node-b 0 train-1 main xid_63 gone - - ",
		"first fault node-a", "consequence node-b - train-1 main - - - Failed, Error, exit 1",
	} {
		expect.Contains(t, out, want)
	}
}

// TestJobOfRemovedNodes finds pods and faults of removed nodes in Prometheus.
func TestJobOfRemovedNodes(t *testing.T) {
	c, now := newJobCluster(t)
	past := newRemovedNode(now)
	past.families["kube_pod_owner"] = []model.Sample{{Metric: model.Metric{"namespace": "serving", "pod": "llm-9"}, Value: 1}}
	url, config := past.serve(t)
	out, errs, status := c.run(nil, "job", "llm", "-n=serving", "--prometheus="+url, "--prometheus-config="+config)
	if status != cli.ExitOK || errs != "" {
		t.Errorf("got status %d, %s", status, errs)
	}
	testfile.CheckGolden(t, *update, "testdata/job_gone_node.txt", out)
	// the last of several faults is not the first
	const family = "nvidia_gpu_allocation_device_failure_last_timestamp_seconds"
	last := past.families[family][0]
	last.Value -= 3600
	past.families["min_over_time("+family] = []model.Sample{last}
	repeated, _, _ := c.run(nil, "job", "llm", "-n=serving", "--prometheus="+url, "--prometheus-config="+config)
	limited, _, _ := c.run(nil, "job", "llm", "-n=serving", "--prometheus="+url, "--prometheus-config="+config, "--since=26h30m")
	if repeated != strings.ReplaceAll(out, "26 h ago", "27 h ago") || limited != out {
		t.Errorf("repeated fault: got %s, since 26.5 h ago %s", repeated, limited)
	}
	c.run(nil, "job", "-l=team=blue,gpu notin (a,b.c),!x,y", "-n=serving", "--prometheus="+url, "--prometheus-config="+config)
	queries := strings.Join(past.queries, "\n")
	for _, query := range []string{
		`last_over_time(kube_pod_owner{namespace="serving",owner_name="llm"}[1w]) or `,
		`last_over_time(nvidia_gpu_allocation_info{namespace="serving",label_jobset_sigs_k8s_io_jobset_name=~"llm"}[1w]) or `,
		`last_over_time(nvidia_gpu_allocation_info{namespace="serving",hpc_job="llm"}[1w]) or `,
		`kube_pod_labels{namespace="serving",label_ray_io_cluster=~"llm(-(raycluster-)?[a-z0-9]{5})?"}[1w])`,
		`last_over_time(nvidia_gpu_allocation_info{namespace="serving",pod=~"llm-9"}[1w])`,
		`last_over_time(nvidia_gpu_allocation_info{namespace="serving",label_gpu!~"a|b\\.c",label_team=~"blue",label_x=~"",label_y=~".+"}[1w]) or `,
	} {
		expect.Contains(t, queries, query, "missing query", query, "in\n")
	}
}

// TestJobThatWaits checks the lines and the JSON about a hung collective, its culprit and stragglers.
func TestJobThatWaits(t *testing.T) {
	c, _ := newJobCluster(t)
	c.nodes["node-a"].incidents.Incidents, c.nodes["node-b"].incidents.Incidents = nil, nil
	since := time.Date(2026, 11, 27, 12, 3, 0, 0, time.Local)
	gpu := func(index string, more ...string) model.Metric {
		m := model.Metric{"node": "node-b", "gpu": model.LabelValue(index), "uuid": gpu0, "namespace": "research", "pod": "train-1", "workload": "job/train"}
		for i := 0; i < len(more); i += 2 {
			m[model.LabelName(more[i])] = model.LabelValue(more[i+1])
		}
		return m
	}
	sample := func(m model.Metric, value float64) []model.Sample {
		return []model.Sample{{Metric: m, Value: model.SampleValue(value)}}
	}
	waits := func(evidence string) []model.Sample {
		return sample(model.Metric{"namespace": "research", "workload": "job/train", "evidence": model.LabelValue(evidence)}, float64(since.Unix()))
	}
	const waiting = "workload_evidence:podgauge_waiting_since_timestamp_seconds:min"
	const slow = "gpu_workload_model_reason:podgauge_straggler:deviation10m"
	const line = "research/train: no fault of the hardware affected 5 pods on 2 nodes\n"
	for want, families := range map[string]map[string][]model.Sample{
		"": nil,
		"job/train: all 16 GPUs wait since 2026-11-27 12:03: utilization 100 %, tensor cores and power near idle\n": {waiting: waits("activity")},
		"job/train: all 16 GPUs wait since 2026-11-27 12:03: utilization 100 %, power near idle\n":                  {waiting: waits("power")},
		"job/train: all GPUs but GPU 3 on node node-b (train-1) wait since 2026-11-27 12:03: utilization 100 %, power near idle\n": {
			"gpu_workload:podgauge_culprit_since_timestamp_seconds:min": sample(gpu("3"), float64(since.Unix())),
		},
		"job/train: all GPUs wait since 2026-11-27 12:03: utilization 100 %, power near idle\n": {
			waiting: waits("power"), "workload:podgauge_gpus:count": nil,
		},
		"slow: GPU 5 on node node-b (train-1): new_reason 40 % below the median\n": {slow: sample(gpu("5", "reason", "new_reason"), -0.4)},
		"slow: GPU 5 on node node-b (train-1): SM clock 40 % below the median\n" +
			"slow: GPU 4 on node node-b (train-1): throttled for 30 % of the time more than the median\n": {
			slow: append(sample(gpu("4", "reason", "throttling"), 0.3), sample(gpu("5", "reason", "sm_clock"), -0.4)...),
		},
		"slow: RDMA port mlx5_2/1 on node node-b (train-1): rate of the link 50 % below the median\n" +
			"slow: GPU 4 on node node-b (train-1): number of NVLinks 6 % below the median\n": {
			slow: sample(gpu("4", "reason", "nvlink_links"), -0.056),
			"port_workload_model_reason:podgauge_straggler:deviation10m": sample(model.Metric{
				"node": "node-b", "device": "mlx5_2", "port": "1", "pod": "train-1", "workload": "job/train", "reason": "rdma_rate",
			}, -0.5),
		},
	} {
		p := &fakePrometheus{families: map[string][]model.Sample{"workload:podgauge_gpus:count": sample(model.Metric{"workload": "job/train"}, 16)}}
		maps.Copy(p.families, families)
		url, config := p.serve(t)
		args := []string{"job", "train", "-n=research", "--prometheus=" + url, "--prometheus-config=" + config}
		if out, errs, status := c.run(nil, args...); status != cli.ExitOK || errs != "" || out != line+want {
			t.Errorf("got status %d, %s%s, want %s", status, out, errs, want)
		}
		expect.Contains(t, strings.Join(p.queries, "\n"),
			waiting+`{namespace="research",workload=~"job/train|train-1|train-2|train-3|train-4|train-5"}`)
		out, _, _ := c.run(nil, append(args, "-o=json")...)
		var d jobDocument
		require.NoError(t, json.Unmarshal([]byte(out), &d))
		expect.Equal(t, len(d.Waiting)+len(d.Stragglers), strings.Count(want, "\n"), out)
		gpus := 16
		if strings.Contains(want, "all GPUs wait") {
			gpus = 0
		}
		if len(d.Waiting) > 0 && (!d.Waiting[0].Since.Equal(since) || d.Waiting[0].GPUs != gpus) {
			t.Error(out)
		}
	}
}

// TestJobWorkloads checks for which workloads a job's conditions are queried: not for another job with a similar name, such as train-large.
func TestJobWorkloads(t *testing.T) {
	for _, row := range []struct{ label, value, arg, want string }{
		{"batch.kubernetes.io/job-name", "train", "train", "job/train|p-0|p-1"},
		{"ray.io/cluster", "train", "train", "job/train|p-0|p-1"},
		{"ray.io/cluster", "train-raycluster-x7k2p", "train", "job/train|job/train-raycluster-x7k2p|p-0|p-1"},
		{"batch.kubernetes.io/job-name", "other", "train", "job/train"},
		{"batch.kubernetes.io/job-name", "train", "-l=team=blue", "job/train|p-0|p-1"},
		{"ray.io/cluster", "a.b", "-l=team=blue", `job/a\\.b|p-0|p-1`},
		{"app", "train", "-l=team=blue", "p-0|p-1"},
	} {
		c := newFakeCluster(t, map[string]*fakeNode{"n": healthyNode(time.Now())})
		for _, name := range []string{"p-1", "p-0"} {
			p := newJobPod(name, "n", 0, time.Now())
			p.Labels = map[string]string{row.label: row.value, "team": "blue"}
			c.otherPods = append(c.otherPods, p)
		}
		p := &fakePrometheus{}
		url, config := p.serve(t)
		c.run(nil, "job", row.arg, "-n=research", "--prometheus="+url, "--prometheus-config="+config)
		expect.Contains(t, strings.Join(p.queries, "\n"), `workload:podgauge_gpus:count{namespace="research",workload=~"`+row.want+`"}`, row)
	}
}
