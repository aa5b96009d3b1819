package dashboards

import "fmt"

// panel is one of Grafana's. Its place and number are given by place.
type panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description,omitempty"`
	GridPos         area             `json:"gridPos"`
	Datasource      *datasource      `json:"datasource,omitempty"`
	FieldConfig     *fieldConfig     `json:"fieldConfig,omitempty"`
	Options         map[string]any   `json:"options,omitempty"`
	Targets         []target         `json:"targets,omitempty"`
	Transformations []transformation `json:"transformations,omitempty"`
	Collapsed       *bool            `json:"collapsed,omitempty"`
	Panels          *[]panel         `json:"panels,omitempty"` // a row's, when it is collapsed
}

// area is in units of which a dashboard is 24 wide.
type area struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

type target struct {
	Datasource   datasource `json:"datasource"`
	Expr         string     `json:"expr"`
	RefID        string     `json:"refId"`
	LegendFormat string     `json:"legendFormat,omitempty"`
	Format       string     `json:"format,omitempty"`
	Instant      bool       `json:"instant,omitempty"`
	Range        bool       `json:"range,omitempty"`
}

type fieldConfig struct {
	Defaults  field      `json:"defaults"`
	Overrides []override `json:"overrides"`
}

type field struct {
	Unit       string         `json:"unit,omitempty"`
	Min        *float64       `json:"min,omitempty"`
	Max        *float64       `json:"max,omitempty"`
	NoValue    string         `json:"noValue,omitempty"`
	Color      *mode          `json:"color,omitempty"`
	Thresholds *thresholds    `json:"thresholds,omitempty"`
	Mappings   []mapping      `json:"mappings"`
	Custom     map[string]any `json:"custom,omitempty"`
}

type mode struct {
	Mode string `json:"mode"`
}

type thresholds struct {
	Mode  string `json:"mode"`
	Steps []step `json:"steps"`
}

// step is the colour from a value on; the first one's is null.
type step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// mapping shows values as words.
type mapping struct {
	Type    string          `json:"type"`
	Options map[string]word `json:"options"`
}

type word struct {
	Text  string `json:"text"`
	Color string `json:"color"`
	Index int    `json:"index"`
}

type override struct {
	Matcher    matcher    `json:"matcher"`
	Properties []property `json:"properties"`
}

type matcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

type property struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

type transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

const width = 24

// place numbers the panels of the rows, and lays them out from left to right.
func place(rows [][]*panel) []*panel {
	all := []*panel{}
	x, y, height := 0, 0, 0
	for _, row := range rows {
		for _, p := range row {
			if x+p.GridPos.W > width {
				x, y, height = 0, y+height, 0
			}
			p.ID = len(all) + 1
			p.GridPos.X, p.GridPos.Y = x, y
			x, height = x+p.GridPos.W, max(height, p.GridPos.H)
			all = append(all, p)
		}
		x, y, height = 0, y+height, 0
	}
	return all
}

// row is a heading and the panels below it.
func row(title string, panels ...*panel) []*panel {
	open := false
	return append([]*panel{{Type: "row", Title: title, GridPos: area{W: width, H: 1}, Collapsed: &open, Panels: &[]panel{}}}, panels...)
}

func draw(kind, title, description string, w, h int) *panel {
	return &panel{
		Type: kind, Title: title, Description: description, GridPos: area{W: w, H: h}, Datasource: &chosen,
		FieldConfig: &fieldConfig{Defaults: field{Mappings: []mapping{}}, Overrides: []override{}},
	}
}

// stat is one number.
func stat(title, description, expr string) *panel {
	p := draw("stat", title, description, 4, 4)
	p.Options = map[string]any{
		"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
		"percentChangeColorMode": "standard", "showPercentChange": false, "wideLayout": true,
		"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	p.Targets = []target{{Datasource: chosen, Expr: spaced(expr), RefID: "A", Instant: true}}
	return p.levels("text")
}

// lines is a number's course in time.
func lines(title, description, unit string) *panel {
	p := draw("timeseries", title, description, 12, 8)
	p.Options = map[string]any{
		"legend":  map[string]any{"calcs": []string{}, "displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
	p.FieldConfig.Defaults.Custom = map[string]any{"drawStyle": "line", "fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "spanNulls": false}
	return p.unit(unit)
}

// states is a course in time of what has a few values only.
func states(title, description string, words ...word) *panel {
	p := draw("state-timeline", title, description, 24, 7)
	p.Options = map[string]any{
		"alignValue": "left", "mergeValues": true, "rowHeight": 0.85, "showValue": "auto",
		"legend":  map[string]any{"calcs": []string{}, "displayMode": "list", "placement": "bottom", "showLegend": false},
		"tooltip": map[string]any{"mode": "single", "sort": "none"},
	}
	p.FieldConfig.Defaults.Custom = map[string]any{"fillOpacity": 75, "lineWidth": 0}
	return p.words(words...)
}

// column is a label of a table's rows, or the value of one of its queries ("A", "B").
type column struct {
	of, title string
	unit      string
	words     []word
	levels    []at   // colours of values
	link      string // where the cell leads to
	hidden    bool   // a query that only says which lines there are
}

// table has a line for each set of labels. Queries of the same labels share their lines.
func table(title, description string, columns ...column) *panel {
	p := draw("table", title, description, 24, 8)
	p.Options = map[string]any{"cellHeight": "sm", "frameIndex": 0, "showHeader": true}
	p.FieldConfig.Defaults.Custom = map[string]any{"align": "auto", "cellOptions": map[string]any{"type": "auto"}, "filterable": true}
	order, names, hidden := map[string]any{}, map[string]any{}, map[string]any{"Time": true}
	for i, c := range columns {
		of := []string{c.of}
		if len(c.of) == 1 {
			of = []string{"Value #" + c.of}
		}
		if c.of == "A" {
			of = append(of, "Value") // what an only query's is called
		}
		for _, name := range of {
			order[name], names[name] = i, c.title
			if c.hidden {
				hidden[name] = true
			}
		}
		if properties := c.properties(); len(properties) > 0 {
			p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, override{matcher{"byName", c.title}, properties})
		}
	}
	p.Transformations = []transformation{
		{"merge", map[string]any{}},
		{"organize", map[string]any{"excludeByName": hidden, "indexByName": order, "renameByName": names}},
	}
	return p
}

func (c column) properties() (all []property) {
	if c.unit != "" {
		all = append(all, property{"unit", c.unit})
	}
	if len(c.words) > 0 {
		all = append(all, property{"mappings", mapped(c.words)}, property{"custom.cellOptions", map[string]any{"type": "color-text"}})
	}
	if len(c.levels) > 0 {
		all = append(all, property{"thresholds", steps("text", c.levels)}, property{"custom.cellOptions", map[string]any{"type": "color-text"}})
	}
	if c.link != "" {
		all = append(all, property{"links", []map[string]any{{"title": "Show", "url": c.link}}})
	}
	return all
}

// query adds a query, and what its series are called. A table's has no legend.
func (p *panel) query(expr, legend string) *panel {
	t := target{Datasource: chosen, Expr: spaced(expr), RefID: string(rune('A' + len(p.Targets))), LegendFormat: legend}
	if p.Type == "table" {
		t.Format, t.Instant = "table", true
	} else {
		t.Range = true
	}
	p.Targets = append(p.Targets, t)
	return p
}

func (p *panel) unit(unit string) *panel {
	p.FieldConfig.Defaults.Unit = unit
	return p
}

// size is in units of which a dashboard is 24 wide.
func (p *panel) size(w, h int) *panel {
	p.GridPos.W, p.GridPos.H = w, h
	return p
}

// share has the axis go from nothing to all.
func (p *panel) share() *panel {
	none, all := 0.0, 1.0
	p.FieldConfig.Defaults.Min, p.FieldConfig.Defaults.Max = &none, &all
	return p.unit("percentunit")
}

// stack draws series upon each other: they are parts of a whole.
func (p *panel) stack() *panel {
	none := 0.0
	p.FieldConfig.Defaults.Min = &none
	p.FieldConfig.Defaults.Custom["stacking"] = map[string]any{"group": "A", "mode": "normal"}
	p.FieldConfig.Defaults.Custom["fillOpacity"] = 30
	return p
}

// bars is for what happens now and then.
func (p *panel) bars() *panel {
	p.FieldConfig.Defaults.Custom["drawStyle"] = "bars"
	p.FieldConfig.Defaults.Custom["fillOpacity"] = 80
	return p
}

// absent is what a panel says where there is no series.
func (p *panel) absent(text string) *panel {
	p.FieldConfig.Defaults.NoValue = text
	return p
}

// at is the colour from a value on.
type at struct {
	value float64
	color string
}

// levels are the colours of values: the first from the lowest on. In a course of time they
// are drawn as lines.
func (p *panel) levels(lowest string, above ...at) *panel {
	p.FieldConfig.Defaults.Thresholds = steps(lowest, above)
	if p.Type == "timeseries" {
		p.FieldConfig.Defaults.Custom["thresholdsStyle"] = map[string]any{"mode": "dashed"}
		return p
	}
	p.FieldConfig.Defaults.Color = &mode{"thresholds"}
	return p
}

func steps(lowest string, above []at) *thresholds {
	t := &thresholds{Mode: "absolute", Steps: []step{{Color: lowest}}}
	for _, s := range above {
		t.Steps = append(t.Steps, step{s.color, &s.value})
	}
	return t
}

// words are what the values 0, 1, 2 … mean; what has no text is shown as it is.
func (p *panel) words(words ...word) *panel {
	p.FieldConfig.Defaults.Mappings = mapped(words)
	return p
}

func mapped(words []word) []mapping {
	options := map[string]word{}
	for i, w := range words {
		if w.Index = i; w.Text != "" {
			options[fmt.Sprint(i)] = w
		}
	}
	return []mapping{{"value", options}}
}

var (
	noYes = []word{{Text: "no", Color: "red"}, {Text: "yes", Color: "green"}}
	held  = []word{{Text: "free", Color: "transparent"}, {Text: "held", Color: "blue"}}
)

// toDevice and the others lead from a line of a table to the dashboard of what it is about.
const (
	toDevice    = "/d/podgauge-device?${datasource:queryparam}&var-node=${__data.fields.Node}&var-gpu=${__data.fields.UUID}&${__url_time_range}"
	toNode      = "/d/podgauge-device?${datasource:queryparam}&var-node=${__data.fields.Node}&${__url_time_range}"
	toNamespace = "/d/podgauge-workload?${datasource:queryparam}&var-namespace=${__data.fields.Namespace}&${__url_time_range}"
	toPod       = "/d/podgauge-workload?${datasource:queryparam}&var-namespace=${__data.fields.Namespace}&var-pod=${__data.fields.Pod}&${__url_time_range}"
)
