package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
	promapi "github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/spf13/pflag"
)

// promSource reads the past of a pod from Prometheus, also after the end of pod
// and node.
type promSource struct {
	address, configFile string
	since               time.Duration
	api                 promv1.API
}

func (s *promSource) addFlags(f *pflag.FlagSet) {
	f.StringVar(&s.address, "prometheus", "",
		"`URL` of a Prometheus with podgauge's metrics, for deleted pods and nodes")
	f.StringVar(&s.configFile, "prometheus-config", "",
		"`file` with password and TLS settings for Prometheus, in promtool's format")
	f.DurationVar(&s.since, "prometheus-since", 7*24*time.Hour, "query Prometheus for this `duration` before now")
}

func (s *promSource) given() bool { return s.address != "" }

func (s *promSource) hint() string {
	if s.given() {
		return ""
	}
	return "; for pods of deleted nodes, set --prometheus"
}

func (s *promSource) connect() error {
	if !s.given() {
		return nil
	}
	if u, err := url.Parse(s.address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--prometheus %q: expected http://host:port or https://host:port", s.address)
	}
	if s.since < time.Minute {
		return fmt.Errorf("--prometheus-since %s: expected at least 1m", s.since)
	}
	transport := http.RoundTripper(http.DefaultTransport)
	if s.configFile != "" {
		config, _, err := promconfig.LoadHTTPConfigFile(s.configFile)
		if err != nil {
			return fmt.Errorf("--prometheus-config: %w", err)
		}
		if transport, err = promconfig.NewRoundTripperFromConfig(*config, "kubectl-podgauge"); err != nil {
			return fmt.Errorf("--prometheus-config: %w", err)
		}
	}
	client, err := promapi.NewClient(promapi.Config{Address: s.address, RoundTripper: transport})
	s.api = promv1.NewAPI(client)
	return err
}

// query returns the queries of a report. Nodes that answered have the current
// health.
func (s *promSource) query(ctx context.Context, timeout time.Duration, answers []answer[podAnswer]) *promQuery {
	return &promQuery{
		api: s.api, ctx: ctx, timeout: 2 * timeout, answers: answers,
		now: time.Now(), window: model.Duration(s.since).String(),
	}
}

// promQuery runs instant queries until the first error.
type promQuery struct {
	api     promv1.API
	ctx     context.Context // of one report
	timeout time.Duration   // of all queries, from now
	answers []answer[podAnswer]
	now     time.Time
	window  string // before now
	err     error
}

func (q *promQuery) vector(at time.Time, format string, args ...any) model.Vector {
	if q.err != nil {
		return nil
	}
	ctx, cancel := context.WithDeadline(q.ctx, q.now.Add(q.timeout))
	defer cancel()
	value, _, _, err := q.api.Query(ctx, fmt.Sprintf(format, args...), at)
	q.err = err
	vector, _ := value.(model.Vector)
	return vector
}

// records returns the faults and allocations of pods. A fault before begin is no
// first fault.
func (q *promQuery) records(namespace string, pods []string, begin time.Time) []podRecord {
	owner := fmt.Sprintf("namespace=%q,pod=~%q", namespace, anyOf(pods))
	faults := func(function string) model.Vector {
		return q.vector(q.now,
			"%[1]s(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{%[2]s}[%[3]s]) or "+
				"%[1]s(nvidia_gpu_allocation_application_error_last_timestamp_seconds{%[2]s}[%[3]s])",
			function, owner, q.window)
	}
	allocations := q.vector(q.now, "last_over_time(nvidia_gpu_allocation_info{%s}[%s])", owner, q.window)
	current := q.vector(q.now, "nvidia_gpu_allocation_info{%s}", owner)
	endOf := q.ends(owner)
	var records []podRecord
	for _, sample := range faults("last_over_time") {
		record := newPromRecord(sample.Metric)
		at := sampleTime(sample)
		record.FaultAt, record.faultAt = at, at
		record.Xid, _ = xid.OfReason(record.Fault)
		record.HealthThen, record.Action = q.healthAt(sample.Metric, at)
		records = append(records, record)
	}
	for _, sample := range faults("min_over_time") { // the first fault
		first, at := newPromRecord(sample.Metric), sampleTime(sample)
		for i := range records {
			r := &records[i]
			if r.sameDevice(&first) && r.Fault == first.Fault && at.Before(r.faultAt) && !at.Before(begin) {
				r.faultAt = at
			}
		}
	}
	for _, sample := range allocations {
		record := newPromRecord(sample.Metric)
		if !slices.ContainsFunc(records, func(r podRecord) bool { return r.sameDevice(&record) }) {
			records = append(records, record)
		}
	}
	for _, sample := range current {
		now := newPromRecord(sample.Metric)
		for i := range records {
			records[i].Allocated = records[i].Allocated || records[i].sameDevice(&now)
		}
	}
	for i := range records {
		records[i].Ended = endOf(records[i].Pod, records[i].Container)
		q.setNow(&records[i])
	}
	return records
}

// jobRecords returns the records of the pods of a job, those that only
// Prometheus knows included.
func (q *promQuery) jobRecords(pods *jobPods, begin time.Time, records []podRecord) []podRecord {
	owner, byLabel := pods.matchers()
	var series []string
	if owner != "" {
		series = append(series, fmt.Sprintf("last_over_time(kube_pod_owner{%s}[%s])", owner, q.window))
	}
	for _, matchers := range byLabel {
		series = append(series, fmt.Sprintf("last_over_time(nvidia_gpu_allocation_info{%[1]s}[%[2]s]) or "+
			"last_over_time(kube_pod_labels{%[1]s}[%[2]s])", matchers, q.window))
	}
	names := map[string]bool{}
	for _, sample := range q.vector(q.now, "%s", strings.Join(series, " or ")) {
		names[string(sample.Metric["pod"])] = true
	}
	for i := range pods.live {
		names[pods.live[i].Name] = true
	}
	for i := range records {
		names[records[i].Pod] = true
	}
	delete(names, "")
	if len(names) == 0 {
		return nil
	}
	return q.records(pods.namespace, slices.Sorted(maps.Keys(names)), begin)
}

// newPromRecord returns a record with the device and container of a series.
func newPromRecord(labels model.Metric) podRecord {
	record := podRecord{
		Node:      string(cmp.Or(labels["node"], labels["instance"])),
		Device:    device.ID(cmp.Or(labels["mig_uuid"], labels["uuid"])),
		GPU:       string(labels["gpu"]),
		Fault:     string(labels["reason"]),
		HealthNow: unknownHealth,
		Source:    "prometheus",
	}
	record.setOwner(allocation.Owner{
		Namespace: string(labels["namespace"]), Pod: string(labels["pod"]), Container: string(labels["container"]),
	})
	return record
}

// sampleTime returns the time that a sample has as its value.
func sampleTime(s *model.Sample) time.Time { return time.UnixMilli(int64(s.Value * 1000)) }

// healthAt returns the effect of a fault and the action, from the two minutes
// after the fault; empty: unknown.
func (q *promQuery) healthAt(labels model.Metric, at time.Time) (health, action string) {
	end := at.Add(2 * time.Minute)
	if end.After(q.now) {
		end = q.now
	}
	for _, sample := range q.vector(end, "last_over_time(nvidia_gpu_unhealthy_info{uuid=%q,mig_uuid=%q}[2m])",
		string(labels["uuid"]), string(labels["mig_uuid"])) {
		if sample.Metric["reason"] == labels["reason"] {
			return "unhealthy", string(sample.Metric["action"])
		}
	}
	return map[bool]string{true: "no change"}[q.err == nil], ""
}

// setNow sets the current health of a device. A device without series is gone,
// unless a query or the node's podgauge failed.
func (q *promQuery) setNow(p *podRecord) {
	id := strconv.Quote(string(p.Device))
	for _, sample := range q.vector(q.now,
		"max by (uuid) (nvidia_gpu_healthy{mig_uuid=%s} or nvidia_gpu_healthy{uuid=%s,mig_uuid=\"\"})", id, id) {
		p.HealthNow = device.Unhealthy.String()
		if sample.Value == 1 {
			p.HealthNow = device.Healthy.String()
		}
	}
	failed := func(a answer[podAnswer]) bool { return a.Node == p.Node && a.Response == nil }
	if q.err == nil && p.HealthNow == unknownHealth && len(q.answers) > 0 && !slices.ContainsFunc(q.answers, failed) {
		p.HealthNow = "gone"
	}
}

// ends returns how containers ended, from kube-state-metrics: phase of the pod,
// reason and exit code.
func (q *promQuery) ends(owner string) func(pod, container string) string {
	type key struct{ pod, container string } // without a container: of the pod
	ends := map[key][]string{}
	add := func(m model.Metric, container, text string) {
		k := key{string(m["pod"]), container}
		if !slices.Contains(ends[k], text) {
			ends[k] = append(ends[k], text)
		}
	}
	for _, sample := range q.vector(q.now,
		"last_over_time(kube_pod_status_phase{%s,phase=~\"Failed|Succeeded\"}[%s]) > 0", owner, q.window) {
		ends[key{string(sample.Metric["pod"]), ""}] = []string{string(sample.Metric["phase"])}
	}
	for _, sample := range q.vector(q.now,
		"last_over_time(kube_pod_container_status_terminated_reason{%[1]s}[%[2]s]) > 0 or "+
			"last_over_time(kube_pod_container_status_last_terminated_reason{%[1]s}[%[2]s]) > 0", owner, q.window) {
		add(sample.Metric, string(sample.Metric["container"]), string(sample.Metric["reason"]))
	}
	for _, sample := range q.vector(q.now, "last_over_time(kube_pod_container_status_last_terminated_exitcode{%s}[%s])",
		owner, q.window) {
		add(sample.Metric, string(sample.Metric["container"]), "exit "+sample.Value.String())
	}
	return func(pod, container string) string {
		return strings.Join(slices.Concat(ends[key{pod, ""}], ends[key{pod, container}]), ", ")
	}
}
