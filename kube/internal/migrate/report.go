package migrate

import "slices"

// Query is a query that reads dcgm-exporter's series.
type Query struct {
	File, Place string
	Text        string
	Translation string   // empty: none
	Reasons     []string // why there is no translation
}

// Report is the result of a migration.
type Report struct {
	Queries []Query
	Others  int      // queries of other series, which stay
	Notes   []string // differences that hold for several queries
	Errors  []string // files that could not be read
}

// Complete reports whether each query has a translation.
func (r *Report) Complete() bool {
	return len(r.Errors) == 0 && !slices.ContainsFunc(r.Queries, func(q Query) bool { return q.Translation == "" })
}

// Options are the properties of the cluster.
type Options struct {
	// MIG is set if GPUs of the cluster are partitioned. Translations then read MIG devices as dcgm-exporter does.
	MIG bool
}
