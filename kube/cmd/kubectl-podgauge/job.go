package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
)

// The events of a job.
const (
	firstFault       = "first fault"       // of the hardware
	laterFault       = "later fault"       // of the hardware
	consequence      = "consequence"       // an error of software, or an end, after the first fault
	information      = "information"       // of the hardware, which did not fail
	applicationError = "application error" // before the first fault, or without one
)

// detectionDelay is the time by which a check may find a fault after the end of
// a container that the fault caused. Times of containers have whole seconds.
const detectionDelay = 6 * time.Second

// jobReport has what happened to the devices of a job's pods, in order of time.
type jobReport struct {
	pods       jobPods
	since      time.Duration // 0: since the creation of the job
	prometheus promSource
}

// jobEvent is a fault of a device that affected a pod of the job, or the end of
// a pod without one.
type jobEvent struct {
	At    time.Time `json:"at,omitzero"` // of the first event; zero: unknown
	Event string    `json:"event"`
	podRecord
}

// jobDocument is the JSON of the report.
type jobDocument struct {
	Namespace  string     `json:"namespace"`
	Job        string     `json:"job"` // name or selector
	Since      time.Time  `json:"since"`
	Pods       int        `json:"pods"`
	Nodes      int        `json:"nodes"`
	Incomplete bool       `json:"incomplete,omitempty"` // some source failed
	Summary    []string   `json:"summary"`
	FirstFault *jobEvent  `json:"first_fault,omitempty"` // absent: no fault of the hardware
	Events     []jobEvent `json:"events"`
	jobConditions
}

func newJobCommand(c *client) *cobra.Command {
	var r jobReport
	var selector string
	command := c.command("job NAME | -l SELECTOR",
		"Show the first fault that affected the pods of a job, and its consequences, also after the end of the pods",
		"  kubectl podgauge job train -n research\n  kubectl podgauge job -l team=vision --since 24h",
		func(ctx context.Context) (result, error) { return r.run(ctx, c) })
	command.Long = command.Short + ".\n\nNAME is a Job, JobSet, LeaderWorkerSet, MPIJob or another job of Kubeflow, " +
		"RayJob, RayCluster, another controller of pods, or the id of a Slurm job."
	command.Args = cobra.MaximumNArgs(1)
	f := command.Flags()
	f.StringVarP(&r.pods.namespace, "namespace", "n", "", "`namespace` of the job (default that of the kubeconfig)")
	f.StringVarP(&selector, "selector", "l", "",
		"`labels` of the pods; of pods that are gone, those of podgauge's --metrics.labels-allowlist are known")
	f.DurationVar(&r.since, "since", 0,
		"only events within this `duration` before now (default since the creation of the job, otherwise 168h)")
	r.prometheus.addFlags(f)
	command.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if (len(args) == 1) == (selector != "") {
			return errors.New("expected the name of a job, or --selector")
		}
		if r.pods.name = strings.Join(args, ""); selector != "" {
			if r.pods.selector, err = labels.Parse(selector); err != nil {
				return fmt.Errorf("--selector: %w", err)
			}
		}
		if r.since < 0 {
			return fmt.Errorf("--since %s: expected a positive duration", r.since)
		}
		if r.pods.namespace, err = c.namespaceOr(r.pods.namespace); err != nil {
			return err
		}
		return r.prometheus.connect()
	}
	return command
}

func (r *jobReport) run(ctx context.Context, c *client) (result, error) {
	var res result
	begin := time.Now().Add(-cmp.Or(r.since, 7*24*time.Hour))
	if created := r.pods.created(ctx, c); r.since == 0 && !created.IsZero() {
		begin = created
	}
	if err := r.pods.list(ctx, c); err != nil {
		res.failed = append(res.failed, err.Error()) // incidents still name the pods
	}
	since := url.Values{"since": {begin.UTC().Format(time.RFC3339)}}
	faults, err := askFaults(ctx, c, since, &r.pods, &r.prometheus)
	if err != nil {
		return result{}, err
	}
	res.failed = append(res.failed, faults.failed...)
	records := faults.records
	var conditions jobConditions
	if r.prometheus.given() {
		q := r.prometheus.query(ctx, c.timeout, faults.answers)
		records = mergeRecords(records, q.jobRecords(&r.pods, begin, records))
		conditions = q.jobConditions(&r.pods)
		if q.err != nil {
			res.failed = append(res.failed, "Prometheus: "+q.err.Error())
		}
	}
	document := r.newDocument(begin, records, len(res.failed) > 0)
	document.jobConditions = conditions
	document.Summary = append(document.Summary, conditions.summary()...)
	if document.Pods == 0 && len(document.Events) == 0 {
		res.failed = append(res.failed, document.title()+": no pod, and no incident of one"+r.prometheus.hint())
	} else {
		res.notes = document.Summary
	}
	res.document = document
	res.rows, res.wide = jobRows(document.Events), 5
	return res, nil
}

// newDocument orders the faults and ends of the pods.
func (r *jobReport) newDocument(begin time.Time, records []podRecord, incomplete bool) *jobDocument {
	d := &jobDocument{Namespace: r.pods.namespace, Job: r.pods.String(), Since: begin.UTC(), Events: []jobEvent{}}
	d.Incomplete = incomplete
	pods, nodes, faulted := map[string]bool{}, map[string]bool{}, map[string]bool{}
	ends, ended := r.pods.ends(), map[allocation.Owner]string{}
	for _, end := range ends {
		ended[end.owner] = end.Ended
	}
	for i := range r.pods.live {
		pods[r.pods.live[i].Name] = true
		nodes[r.pods.live[i].Spec.NodeName] = true
	}
	for _, record := range records {
		switch {
		case record.Fault == "", record.Fault == device.ReasonRetired: // the latter is a decision
		case record.FaultAt.Before(begin): // of an earlier job with the name
			continue
		default:
			if !record.isInformation() {
				faulted[record.Pod] = true
				record.Ended = cmp.Or(record.Ended, ended[record.owner])
			}
			d.Events = append(d.Events, jobEvent{At: record.faultAt, podRecord: record})
		}
		pods[record.Pod], nodes[record.Node] = true, true
	}
	for _, end := range append(ends, records...) {
		failed := end.Ended != "" && !strings.HasPrefix(end.Ended, "Succeeded")
		if end.Fault == "" && failed && !faulted[end.Pod] {
			faulted[end.Pod] = true
			d.Events = append(d.Events, jobEvent{At: end.faultAt, podRecord: end})
		}
	}
	delete(pods, "") // an incident of a Slurm job on a node without Kubernetes
	delete(nodes, "")
	d.Pods, d.Nodes = len(pods), len(nodes)
	d.setEvents()
	return d
}

// setEvents orders and names the events. Without a fault of the hardware before
// them, ends are no consequences, and left out.
func (d *jobDocument) setEvents() {
	slices.SortStableFunc(d.Events, func(a, b jobEvent) int {
		if a.At.IsZero() != b.At.IsZero() { // the unknown last
			return b.At.Compare(a.At)
		}
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod))
	})
	var firstAt time.Time
	if i := slices.IndexFunc(d.Events, jobEvent.isHardware); i >= 0 {
		firstAt = d.Events[i].At
	}
	d.Events = slices.DeleteFunc(d.Events, func(e jobEvent) bool {
		before := !e.At.IsZero() && e.At.Before(firstAt.Add(-detectionDelay))
		return e.Fault == "" && (firstAt.IsZero() || before)
	})
	applicationErrors := 0
	for i := range d.Events {
		e := &d.Events[i]
		switch {
		case e.isInformation():
			e.Event = information
		case e.isHardware() && d.FirstFault == nil:
			e.Event, d.FirstFault = firstFault, e
		case e.isHardware():
			e.Event = laterFault
		case d.FirstFault != nil || e.Fault == "":
			e.Event = consequence
		default:
			e.Event = applicationError
			applicationErrors++
		}
	}
	d.Summary = d.summary(applicationErrors)
}

// isHardware reports whether the event is a fault of the hardware.
func (e jobEvent) isHardware() bool {
	return e.Fault != "" && !xid.BySoftware(e.Fault) && !e.isInformation()
}

// isInformation reports whether the hardware reported a repair, or details of
// another fault: Xid 63, but not errors of software such as Xid 43.
func (p *podRecord) isInformation() bool {
	number, isXid := xid.OfReason(p.Fault)
	return isXid && xid.ClassOf(number) == xid.Information && !xid.BySoftware(p.Fault)
}

func (d *jobDocument) title() string { return d.Namespace + "/" + d.Job }

// summary returns the answer in words.
func (d *jobDocument) summary(applicationErrors int) []string {
	size := text.Plural(d.Pods, "pod") + " on " + text.Plural(d.Nodes, "node")
	if d.FirstFault == nil {
		line := fmt.Sprintf("%s: no fault of the hardware affected %s", d.title(), size)
		if applicationErrors > 0 {
			line += ", but " + text.Plural(applicationErrors, "application error")
		}
		if d.Incomplete {
			line += ", as far as known"
		}
		return []string{line}
	}
	f := d.FirstFault
	action := "none pending"
	if f.Action != "" {
		action = xid.Action(f.Action)
	}
	return []string{
		fmt.Sprintf("%s: %s; the first fault is of GPU %s on node %s, %s",
			d.title(), size, f.GPU, f.Node, cli.Ago(time.Now(), f.At)),
		fmt.Sprintf("cause: %s (%s)", xid.Reason(f.Fault), f.Device),
		fmt.Sprintf("action: %s; the GPU is %s now", action, f.HealthNow),
	}
}

func jobRows(events []jobEvent) [][]string {
	if len(events) == 0 {
		return nil
	}
	rows := [][]string{{
		"WHEN", "EVENT", "NODE", "GPU", "POD", "CONTAINER", "FAULT", "HEALTH NOW", "ACTION", "ENDED",
		"HEALTH THEN", "XID", "HPC JOBS", "UUID", "SOURCE",
	}}
	now := time.Now()
	for i := range events {
		e := &events[i]
		rows = append(rows, []string{
			cli.Ago(now, e.At), e.Event, e.Node, e.GPU, e.Pod, e.Container, e.Fault, e.HealthNow, e.Action, e.Ended,
			e.HealthThen, xidCell(e.Xid), strings.Join(e.HPCJobs, ","), string(e.Device), e.Source,
		})
	}
	return rows
}
