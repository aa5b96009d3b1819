package doctor

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
