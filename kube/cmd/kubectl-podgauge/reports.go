package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

func askDevices(ctx context.Context, c *client) ([]answer[api.DevicesResponse], error) {
	return askNodes(ctx, c, func(ctx context.Context, p *corev1.Pod) (*api.DevicesResponse, error) {
		return get[api.DevicesResponse](ctx, c, p, "status", nil)
	})
}

// wideColumns is the number of columns that cli adds to both tables for -o wide.
const wideColumns = 4

// reportStatus returns the devices of all nodes.
func (c *client) reportStatus(ctx context.Context) (result, error) {
	answers, err := askDevices(ctx, c)
	res := newResult(answers)
	res.wide = wideColumns
	res.rows = nodeRows(answers, cli.DeviceTable(&api.DevicesResponse{}, true)[0],
		func(r *api.DevicesResponse) [][]string { return cli.DeviceTable(r, true)[1:] })
	return res, err
}

func newIncidentsCommand(c *client) *cobra.Command {
	var query url.Values
	command := c.command("incidents", "Show the faults of all nodes' devices, newest first",
		"  kubectl podgauge incidents -n serving --since 24h",
		func(ctx context.Context) (result, error) { return c.reportIncidents(ctx, query) })
	filters := cli.AddIncidentFilters(command.Flags())
	command.PreRunE = func(command *cobra.Command, _ []string) (err error) {
		query, err = cli.IncidentQuery(command.Flags(), filters)
		return err
	}
	return command
}

// reportIncidents returns the incidents of all nodes.
func (c *client) reportIncidents(ctx context.Context, query url.Values) (result, error) {
	answers, err := askNodes(ctx, c, func(ctx context.Context, p *corev1.Pod) (*api.IncidentsResponse, error) {
		return get[api.IncidentsResponse](ctx, c, p, "incidents", query)
	})
	res := newResult(answers)
	res.wide = wideColumns
	res.rows = [][]string{append([]string{"NODE"}, cli.IncidentTable(&api.IncidentsResponse{}, true)[0]...)}
	type entry struct {
		last time.Time
		row  []string
	}
	var entries []entry
	for node, response := range responses(answers) {
		for _, note := range cli.IncidentNotes(response) {
			res.notes = append(res.notes, node+": "+note)
		}
		for i, row := range cli.IncidentTable(response, true)[1:] {
			entries = append(entries, entry{response.Incidents[i].Last, append([]string{node}, row...)})
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return b.last.Compare(a.last) })
	for _, e := range entries {
		res.rows = append(res.rows, e.row)
	}
	return res, err
}

// nodeSummary is the line of a node.
type nodeSummary struct {
	Node      string `json:"node"`
	Pod       string `json:"podgauge"`
	Error     string `json:"error,omitempty"` // the counts are unknown
	Devices   int    `json:"devices"`
	Unhealthy int    `json:"unhealthy"`
	Suspect   int    `json:"suspect"`
	Allocated int    `json:"allocated"`
	Driver    string `json:"driver,omitempty"`
	Kubelet   string `json:"kubelet,omitempty"`
	Worst     string `json:"worst,omitempty"` // device with reason and action
	// LastIncident is the newest incident.
	LastIncident *incident.Incident `json:"last_incident,omitempty"`

	lastIncidentAge string
}

// reportNodes returns a line for each node.
func (c *client) reportNodes(ctx context.Context) (result, error) {
	answers, err := askDevices(ctx, c)
	nodes, problems := make([]nodeSummary, len(answers)), false
	for i, a := range answers {
		nodes[i] = summarize(a)
		problems = problems || a.Response == nil
	}
	slices.SortStableFunc(nodes, func(a, b nodeSummary) int { return slices.Compare(b.badness(), a.badness()) })
	rows := [][]string{{
		"NODE", "DEVICES", "UNHEALTHY", "SUSPECT", "ALLOCATED", "DRIVER", "KUBELET", "WORST", "LAST INCIDENT",
		"PODGAUGE",
	}}
	for _, n := range nodes {
		row := []string{
			n.Node, strconv.Itoa(n.Devices), strconv.Itoa(n.Unhealthy), strconv.Itoa(n.Suspect),
			strconv.Itoa(n.Allocated), n.Driver, n.Kubelet, n.Worst, n.lastIncidentAge, n.Pod,
		}
		if n.Error != "" {
			row = []string{n.Node, "?", "?", "?", "?", "?", "?", n.Error, "?", n.Pod}
		}
		rows = append(rows, row)
	}
	return result{document: map[string]any{"nodes": nodes}, rows: rows, wide: 1, problems: problems}, err
}

func summarize(a answer[api.DevicesResponse]) nodeSummary {
	n := nodeSummary{Node: a.Node, Pod: a.Pod, Error: a.Error}
	if a.Response == nil {
		return n
	}
	counts := a.Response.Counts()
	n.Devices = counts.Devices
	n.Unhealthy = counts.Devices - counts.Healthy
	n.Suspect = counts.Suspect
	n.Allocated = counts.Allocated
	n.Driver, n.Kubelet = cli.DriverText(a.Response), cli.KubeletText(a.Response)
	for i := range a.Response.Devices {
		d := &a.Response.Devices[i]
		if n.Worst == "" && !d.Healthy {
			n.Worst = fmt.Sprintf("%s %s", cli.DeviceNumber(d), cmp.Or(cli.ReasonText(d), d.Health))
		}
		if last := d.LastIncident; last != nil && (n.LastIncident == nil || last.Last.After(n.LastIncident.Last)) {
			n.LastIncident, n.lastIncidentAge = last, last.Reason+" "+cli.Ago(a.Response.At, last.Last)
		}
	}
	return n
}

// badness orders nodes: without an answer, without devices or a driver, with
// unhealthy devices, without a kubelet, with suspect devices.
func (n *nodeSummary) badness() []int {
	number := func(bad bool) int {
		if bad {
			return 1
		}
		return 0
	}
	return []int{number(n.Error != ""), number(n.Driver != "up"), n.Unhealthy, number(n.Kubelet != "up"), n.Suspect}
}
