package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// doctorTimeout is the default time for each node. Doctor waits ten seconds for
// each query that hangs.
const doctorTimeout = time.Minute

// doctorReport has the findings of podgauge doctor in each pod.
type doctorReport struct{ withoutFlags }

func newDoctorReport() clusterReport { return doctorReport{} }

func (doctorReport) complete(c *client, f *pflag.FlagSet, _ []string) error {
	if !f.Changed("timeout") {
		c.timeout = doctorTimeout
	}
	return nil
}

func (doctorReport) run(ctx context.Context, c *client) (result, error) {
	answers, err := askNodes(ctx, c, func(ctx context.Context, p *corev1.Pod) (*doctor.Report, error) {
		output, err := c.runInPod(ctx, p, []string{"podgauge", "doctor", "--output=json"})
		if err != nil {
			return nil, err
		}
		r := new(doctor.Report)
		if err := json.Unmarshal(output, r); err != nil {
			return nil, fmt.Errorf("not a report of podgauge doctor: %w", err)
		}
		return r, nil
	})
	res := result{
		document: nodeList[doctor.Report]{answers}, failed: failedNodes(answers),
		table: func(wide bool) [][]string {
			rows := [][]string{{"NODE", "CHECK", "STATUS", "MESSAGE"}}
			if wide {
				rows[0] = append(rows[0], "IMPACT", "FIX")
			}
			for _, a := range answers {
				if a.Response != nil {
					rows = append(rows, findingRows(a.Node, a.Response, wide)...)
				}
			}
			return rows
		},
	}
	for _, a := range answers {
		res.problems = res.problems || a.Response != nil && a.Response.Failures > 0
	}
	return res, err
}

// findingRows returns the problems of a node, or a row without a check.
func findingRows(node string, r *doctor.Report, wide bool) (rows [][]string) {
	for _, f := range r.Checks {
		if f.Status != doctor.StatusFailure && f.Status != doctor.StatusWarning {
			continue
		}
		row := []string{node, f.Check, string(f.Status), f.Message}
		if wide {
			row = append(row, cmp.Or(f.Impact, "-"), cmp.Or(f.Fix, "-"))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		rows = [][]string{{node, "-", string(doctor.StatusOK), "no problems"}}
	}
	return rows
}
