package main

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// podReport has the devices of a pod, from podgauge and Prometheus.
type podReport struct {
	namespace, name string
	prometheus      promSource
}

func newPodCommand(c *client) *cobra.Command {
	var r podReport
	command := c.command("pod NAME",
		"Show the devices of a pod, and the faults that affected the pod, also after its end",
		"  kubectl podgauge pod llm-0 -n serving --prometheus=http://prometheus:9090",
		func(ctx context.Context) (result, error) { return r.run(ctx, c) })
	command.Args = cobra.ExactArgs(1)
	f := command.Flags()
	f.StringVarP(&r.namespace, "namespace", "n", "", "`namespace` of the pod (default that of the kubeconfig)")
	r.prometheus.addFlags(f)
	command.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		r.name = args[0]
		if r.namespace == "" {
			if r.namespace, _, err = c.flags.ToRawKubeConfigLoader().Namespace(); err != nil {
				return err
			}
		}
		return r.prometheus.connect()
	}
	return command
}

func (r *podReport) run(ctx context.Context, c *client) (result, error) {
	query := url.Values{"namespace": {r.namespace}, "pod": {r.name}, "limit": {strconv.Itoa(api.MaxLimit)}}
	answers, err := askNodes(ctx, c, func(ctx context.Context, p *corev1.Pod) (_ *podAnswer, err error) {
		a := new(podAnswer)
		if a.incidents, err = get[api.IncidentsResponse](ctx, c, p, "incidents", query); err != nil {
			return nil, err
		}
		a.devices, err = get[api.DevicesResponse](ctx, c, p, "status", nil)
		return a, err
	})
	if err != nil && !r.prometheus.given() {
		return result{}, err
	}
	res := result{failed: failedNodes(answers)}
	if err != nil { // Prometheus may still know the pod
		res.failed = []string{err.Error()}
	}
	records := []podRecord{}
	for _, a := range answers {
		if a.Response != nil {
			records = append(records, r.recordsOf(a.Node, a.Response)...)
		}
	}
	if r.prometheus.given() {
		past, err := r.prometheus.records(ctx, c.timeout, r.namespace, r.name, answers)
		if err != nil {
			res.failed = append(res.failed, "Prometheus: "+err.Error())
		}
		records = mergeRecords(records, past)
	}
	slices.SortStableFunc(records, func(a, b podRecord) int { return b.faultTime().Compare(a.faultTime()) })
	if len(records) == 0 {
		res.failed = append(res.failed,
			r.namespace+"/"+r.name+": no node reports a device of this pod"+r.prometheus.hint())
	}
	res.document = map[string]any{"namespace": r.namespace, "pod": r.name, "devices": records}
	res.table = func(wide bool) [][]string { return podTable(records, wide) }
	return res, nil
}

// recordsOf returns the records of a node: a record for each fault, and for
// each device without a fault.
func (r *podReport) recordsOf(node string, a *podAnswer) (records []podRecord) {
	type key struct {
		id        device.ID
		container string
	}
	faulted, ended := map[key]bool{}, map[string]string{}
	for i := range a.incidents.Incidents {
		inc := &a.incidents.Incidents[i]
		for _, affected := range inc.Affected {
			if affected.Namespace != r.namespace || affected.Pod != r.name {
				continue
			}
			id, profile := inc.DeviceOf(affected), inc.Profile
			for _, mig := range inc.MIGDevices {
				if mig.Device == id {
					profile = mig.Profile
				}
			}
			faulted[key{id, affected.Container}] = true
			ended[affected.Container] = cmp.Or(ended[affected.Container], api.TerminationText(affected.Termination))
			record := podRecord{
				Node:       node,
				Device:     id,
				GPU:        strings.TrimSpace(strconv.Itoa(inc.Index) + " " + profile),
				Container:  affected.Container,
				Fault:      inc.Reason,
				FaultAt:    new(inc.LastOf(affected)),
				HealthThen: cli.OutcomeText(a.incidents.At, inc),
				Xid:        inc.Xid,
				Action:     inc.PendingAction(),
				Ended:      api.TerminationText(affected.Termination),
				HealthNow:  "gone",
				Source:     "podgauge",
			}
			record.setNow(a.devices, r)
			records = append(records, record)
		}
	}
	for i := range a.devices.Devices {
		d := &a.devices.Devices[i]
		for _, o := range slices.Concat(d.Owners, d.PastOwners) {
			if o.Namespace == r.namespace && o.Pod == r.name && !faulted[key{d.ID, o.Container}] {
				record := podRecord{
					Node: node, Device: d.ID, GPU: cli.DeviceNumber(d), Container: o.Container,
					Source: "podgauge",
				}
				record.setNow(a.devices, r)
				if !record.Allocated { // otherwise a fault affected an earlier container
					record.Ended = ended[o.Container]
				}
				records = append(records, record)
			}
		}
	}
	return records
}

// setNow sets the current state of the device.
func (p *podRecord) setNow(devices *api.DevicesResponse, r *podReport) {
	for i := range devices.Devices {
		d := &devices.Devices[i]
		if d.ID != p.Device {
			continue
		}
		p.GPU, p.HealthNow, p.ReasonNow = cli.DeviceNumber(d), d.Health, cli.ReasonText(d)
		p.Allocated = slices.ContainsFunc(d.Owners, func(o api.OwnerJSON) bool {
			return o.Namespace == r.namespace && o.Pod == r.name && o.Container == p.Container
		})
	}
}

// mergeRecords adds the past records of Prometheus that no node has. A record
// of Prometheus may add the end of a container.
func mergeRecords(records, past []podRecord) []podRecord {
	for _, p := range past {
		i := slices.IndexFunc(records, func(r podRecord) bool {
			return r.sameDevice(&p) && (r.Fault == p.Fault || p.Fault == "")
		})
		if i < 0 {
			records = append(records, p)
			continue
		}
		records[i].Ended = cmp.Or(records[i].Ended, p.Ended)
	}
	return records
}

func podTable(records []podRecord, wide bool) [][]string {
	rows := [][]string{{
		"NODE", "GPU", "CONTAINER", "ALLOCATED", "HEALTH NOW", "FAULT", "WHEN", "HEALTH THEN", "XID",
		"ACTION", "ENDED",
	}}
	if wide {
		rows[0] = append(rows[0], "REASON", "UUID", "SOURCE")
	}
	now := time.Now()
	for i := range records {
		p := &records[i]
		allocated, xid := "no", ""
		if p.Allocated {
			allocated = "yes"
		}
		if p.Xid > 0 {
			xid = strconv.FormatUint(p.Xid, 10)
		}
		row := []string{
			p.Node, p.GPU, p.Container, allocated, p.HealthNow, p.Fault, cli.Ago(now, p.faultTime()),
			p.HealthThen, xid, p.Action, p.Ended,
		}
		if wide {
			row = append(row, p.ReasonNow, string(p.Device), p.Source)
		}
		for i := range row {
			row[i] = cmp.Or(row[i], "-")
		}
		rows = append(rows, row)
	}
	return rows
}
