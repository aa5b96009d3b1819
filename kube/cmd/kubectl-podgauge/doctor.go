package main

import (
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
	res := newResult(answers)
	res.rows, res.wide = nodeRows(answers, []string{"CHECK", "STATUS", "MESSAGE", "IMPACT", "FIX"}, findingRows), 2
	for _, report := range responses(answers) {
		res.problems = res.problems || report.Failures > 0
	}
	return res, err
}

// findingRows returns the problems of a node, or a row without a check.
func findingRows(r *doctor.Report) (rows [][]string) {
	for _, f := range r.Checks {
		if f.Status == doctor.StatusFailure || f.Status == doctor.StatusWarning {
			rows = append(rows, []string{f.Check, string(f.Status), f.Message, f.Impact, f.Fix})
		}
	}
	if len(rows) == 0 {
		rows = [][]string{{"", string(doctor.StatusOK), "no problems", "", ""}}
	}
	return rows
}
