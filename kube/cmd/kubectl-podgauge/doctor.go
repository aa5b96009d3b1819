package main

import (
	"cmp"
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// longTimeout is the default time for each node of doctor and capture. Doctor
// waits ten seconds for each query that hangs, and capture takes ten seconds.
const longTimeout = time.Minute

func (c *client) waitLonger(command *cobra.Command, _ []string) {
	if !command.Flags().Changed("timeout") {
		c.timeout = longTimeout
	}
}

func newDoctorCommand(c *client) *cobra.Command {
	command := c.command("doctor", "Examine all nodes with podgauge doctor, and show the problems",
		"  kubectl podgauge doctor -o wide", c.reportDoctor)
	command.PreRun = c.waitLonger
	return command
}

// reportDoctor returns the findings of podgauge doctor in each pod.
func (c *client) reportDoctor(ctx context.Context) (result, error) {
	answers, err := askNodes(ctx, c, func(ctx context.Context, p *corev1.Pod) (*doctor.Report, error) {
		return parse[doctor.Report](c.runInPod(ctx, p, clientCommand("doctor", nil)))
	})
	res := result{
		document: nodeList[doctor.Report]{answers}, failed: failedNodes(answers),
		table: func(wide bool) [][]string {
			headers := []string{"NODE", "CHECK", "STATUS", "MESSAGE"}
			if wide {
				headers = append(headers, "IMPACT", "FIX")
			}
			findings := func(r *doctor.Report) [][]string { return findingRows(r, wide) }
			return append([][]string{headers}, nodeRows(answers, findings)...)
		},
	}
	for _, a := range answers {
		res.problems = res.problems || a.Response != nil && a.Response.Failures > 0
	}
	return res, err
}

// findingRows returns the problems of a node, or a row without a check.
func findingRows(r *doctor.Report, wide bool) (rows [][]string) {
	for _, f := range r.Checks {
		if f.Status != doctor.StatusFailure && f.Status != doctor.StatusWarning {
			continue
		}
		row := []string{f.Check, string(f.Status), f.Message}
		if wide {
			row = append(row, cmp.Or(f.Impact, "-"), cmp.Or(f.Fix, "-"))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		rows = [][]string{{"-", string(doctor.StatusOK), "no problems"}}
	}
	return rows
}
