package main

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/incident"
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
		if r.namespace, err = c.namespaceOr(r.namespace); err != nil {
			return err
		}
		return r.prometheus.connect()
	}
	return command
}

func (r *podReport) run(ctx context.Context, c *client) (result, error) {
	faults, err := askFaults(ctx, c, url.Values{"namespace": {r.namespace}, "pod": {r.name}}, r, &r.prometheus)
	if err != nil {
		return result{}, err
	}
	res := result{failed: faults.failed}
	records := append([]podRecord{}, faults.records...) // [] in JSON
	if r.prometheus.given() {
		q := r.prometheus.query(ctx, c.timeout, faults.answers)
		records = mergeRecords(records, q.records(r.namespace, []string{r.name}, time.Time{}))
		if q.err != nil {
			res.failed = append(res.failed, "Prometheus: "+q.err.Error())
		}
	}
	slices.SortStableFunc(records, func(a, b podRecord) int { return b.FaultAt.Compare(a.FaultAt) })
	if len(records) == 0 {
		res.failed = append(res.failed,
			r.namespace+"/"+r.name+": no node reports a device of this pod"+r.prometheus.hint())
	}
	res.document = map[string]any{"namespace": r.namespace, "pod": r.name, "devices": records}
	res.rows, res.wide = podRows(records), 3
	return res, nil
}

// podFaults is what all nodes know about a set of pods.
type podFaults struct {
	answers []answer[podAnswer]
	records []podRecord
	failed  []string // a line for each failure
}

// askFaults returns the records of pods, from the devices of all nodes and the
// incidents of a query. With Prometheus, which may still know the pods, it needs
// no podgauge.
func askFaults(ctx context.Context, c *client, query url.Values, pods podSet, prometheus *promSource) (
	f podFaults, err error,
) {
	query.Set("limit", strconv.Itoa(api.MaxLimit))
	f.answers, err = askNodes(ctx, c, func(ctx context.Context, p *corev1.Pod) (_ *podAnswer, err error) {
		a := new(podAnswer)
		if a.incidents, err = get[api.IncidentsResponse](ctx, c, p, "incidents", query); err != nil {
			return nil, err
		}
		a.devices, err = get[api.DevicesResponse](ctx, c, p, "status", nil)
		return a, err
	})
	f.failed = failedNodes(f.answers)
	if err != nil && prometheus.given() {
		f.failed, err = []string{err.Error()}, nil
	}
	for node, response := range responses(f.answers) {
		f.records = append(f.records, recordsOf(node, response, pods)...)
	}
	return f, err
}

func (r *podReport) hasOwner(o allocation.Owner) bool {
	return o.Namespace == r.namespace && o.Pod == r.name
}

func (r *podReport) hasAffected(_ *incident.Incident, c *incident.AffectedContainer) bool {
	return r.hasOwner(c.Owner)
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

func podRows(records []podRecord) [][]string {
	rows := [][]string{{
		"NODE", "GPU", "CONTAINER", "ALLOCATED", "HEALTH NOW", "FAULT", "WHEN", "HEALTH THEN", "XID", "ACTION", "ENDED",
		"REASON", "UUID", "SOURCE",
	}}
	now := time.Now()
	for i := range records {
		p := &records[i]
		allocated := map[bool]string{false: "no", true: "yes"}[p.Allocated]
		rows = append(rows, []string{
			p.Node, p.GPU, p.Container, allocated, p.HealthNow, p.Fault, cli.Ago(now, p.FaultAt),
			p.HealthThen, xidCell(p.Xid), p.Action, p.Ended, p.ReasonNow, string(p.Device), p.Source,
		})
	}
	return rows
}
