package dashboards

import "slices"

// panel is a panel of a dashboard.
type panel struct {
	Type, Title, Description string        // Type: row, stat, timeseries, state-timeline or table
	Size                     [2]int        // width and height in grid units; zero: that of the type
	Unit                     string        // Grafana's id of a unit
	Ratio                    bool          // an axis of 0–100 %
	Interval                 string        // shortest step; empty: as the width has room for
	Stack                    bool          // the series are parts of a whole
	Bars                     bool          // for rare events
	NoValue                  string        `yaml:"noValue"` // text of a panel without series
	Lowest                   string        // color of values below the thresholds; "text" if empty
	Thresholds               []threshold   // also dashed lines in a time series
	Mappings                 []mappedValue // texts of the values 0, 1, 2 …
	Columns                  []column      // of a table, with a row for each set of labels, shared by all queries
	Queries                  []query
	ID, X, Y                 int `yaml:"-"` // set by layout
}

// threshold is a color from a value upwards.
type threshold struct {
	Value float64
	Color string
}

// mappedValue replaces a value; a value without text is shown as a number.
type mappedValue struct{ Text, Color string }

// query is a query with the legend of its series; the query of a table has no
// legend.
type query struct {
	Expr, Legend string
	Share        bool // a percentage beside a number, which alone has the thresholds' colors
}

// Name returns the name of the query's series.
func (q query) Name() string {
	if q.Share {
		return "share"
	}
	return q.Legend
}

// HasShare reports whether a query is a share.
func (p panel) HasShare() bool {
	return slices.ContainsFunc(p.Queries, func(q query) bool { return q.Share })
}

// prefixOwnerLabels changes the names of owner labels in legends and columns.
func (p *panel) prefixOwnerLabels(prefix string) {
	p.Queries, p.Columns = slices.Clone(p.Queries), slices.Clone(p.Columns) // YAML anchors share them
	for i := range p.Queries {
		p.Queries[i].Legend = prefixText(p.Queries[i].Legend, prefix)
	}
	for i := range p.Columns {
		p.Columns[i].Key = ownerLabel.ReplaceAllString(p.Columns[i].Key, prefix+"$0")
	}
}

// column is a label of a table's rows, or the value of a query ("A", "B").
type column struct {
	Key, Title, Unit string
	Mappings         []mappedValue
	Lowest           string // color of values below the thresholds; "text" if empty
	Thresholds       []threshold
	Link             string // URL of the cell's link
	Hidden           bool   // a query that only selects the rows
}

// Organize returns the options of the transformation that names and orders the
// columns.
func (p panel) Organize() any {
	order, names, hidden := map[string]int{}, map[string]string{}, map[string]bool{"Time": true}
	for i, c := range p.Columns {
		keys := []string{c.Key}
		if len(c.Key) == 1 {
			keys = []string{"Value #" + c.Key}
		}
		if c.Key == "A" {
			keys = append(keys, "Value") // name of the value in a table with a single query
		}
		for _, name := range keys {
			order[name], names[name] = i, c.Title
			if c.Hidden {
				hidden[name] = true
			}
		}
	}
	return map[string]any{"excludeByName": hidden, "indexByName": order, "renameByName": names}
}

const gridWidth = 24

var defaultSizes = map[string][2]int{
	"row":            {gridWidth, 1},
	"stat":           {4, 4},
	"timeseries":     {12, 8},
	"state-timeline": {gridWidth, 7},
	"table":          {gridWidth, 8},
}

// layout numbers the panels and places them from left to right.
func layout(panels []panel) {
	x, y, height := 0, 0, 0
	for i := range panels {
		p := &panels[i]
		if p.Size == [2]int{} {
			p.Size = defaultSizes[p.Type]
		}
		if x+p.Size[0] > gridWidth {
			x, y, height = 0, y+height, 0
		}
		p.ID, p.X, p.Y = i+1, x, y
		x, height = x+p.Size[0], max(height, p.Size[1])
	}
}
