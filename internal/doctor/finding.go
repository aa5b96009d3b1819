package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
)

// CheckStatus is the outcome of a check.
type CheckStatus string

// The outcomes.
const (
	StatusOK      CheckStatus = "ok"
	StatusWarning CheckStatus = "warning" // podgauge works with restrictions
	StatusFailure CheckStatus = "failure" // devices are not registered, or metrics lack pods
	StatusSkipped CheckStatus = "skipped" // does not concern the node, or a failure hides the result
)

// Finding is the result of a check. The texts contain untrusted names.
type Finding struct {
	Check   string      `json:"check"`
	Status  CheckStatus `json:"status"`
	Message string      `json:"message"`
	Impact  string      `json:"impact,omitempty"` // of a warning or a failure
	Fix     string      `json:"fix,omitempty"`    // of a warning or a failure
}

func ok(format string, args ...any) Finding {
	return Finding{Status: StatusOK, Message: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) Finding {
	return Finding{Status: StatusSkipped, Message: fmt.Sprintf(format, args...)}
}

func warning(format string, args ...any) Finding {
	return Finding{Status: StatusWarning, Message: fmt.Sprintf(format, args...)}
}

func failure(format string, args ...any) Finding {
	return Finding{Status: StatusFailure, Message: fmt.Sprintf(format, args...)}
}

// because sets an impact, and fixedBy a fix, other than that of the check.
func (f Finding) because(impact string) Finding {
	f.Impact = impact
	return f
}

func (f Finding) fixedBy(fix string) Finding {
	f.Fix = fix
	return f
}

// orElse adds impact and fix of the check to a problem that has none.
func (f Finding) orElse(impact, fix string) Finding {
	if f.Status == StatusWarning || f.Status == StatusFailure {
		f.Impact, f.Fix = cmp.Or(f.Impact, impact), cmp.Or(f.Fix, fix)
	}
	return f
}

// Report is the output of `podgauge doctor -o json`.
type Report struct {
	Node     string    `json:"node"`
	Version  string    `json:"version"`
	Failures int       `json:"failures"`
	Warnings int       `json:"warnings"`
	Checks   []Finding `json:"checks"`
}

// NewReport counts the problems of a node's findings.
func NewReport(node, version string, findings []Finding) Report {
	r := Report{Node: node, Version: version, Checks: findings}
	for _, f := range findings {
		switch f.Status {
		case StatusFailure:
			r.Failures++
		case StatusWarning:
			r.Warnings++
		case StatusOK, StatusSkipped:
		}
	}
	return r
}

// Render returns JSON or YAML; or a row for each check, and a paragraph for each
// problem.
func (r *Report) Render(out cli.Output) (string, error) {
	if !out.IsTable() {
		body, _ := json.MarshalIndent(r, "", "  ") // all fields can be encoded
		return out.Document(append(body, '\n'))
	}
	var details strings.Builder
	rows := [][]string{{"CHECK", "STATUS", "MESSAGE"}}
	for _, f := range r.Checks {
		rows = append(rows, []string{f.Check, string(f.Status), f.Message})
		if f.Impact != "" && !out.NoHeaders {
			fmt.Fprintf(&details, "\n%s\n  impact: %s\n  fix:    %s\n", f.Check, f.Impact, f.Fix)
		}
	}
	summary := fmt.Sprintf("%s: %s, %s", r.Node, text.Plural(r.Failures, "failure"), text.Plural(r.Warnings, "warning"))
	return out.Table([]string{summary}, rows) + details.String(), nil
}
