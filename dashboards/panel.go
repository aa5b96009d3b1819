package dashboards

import "fmt"

// panel is a panel of a dashboard. layout sets number and position.
type panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description,omitempty"`
	GridPos         gridPos          `json:"gridPos"`
	Datasource      *datasource      `json:"datasource,omitempty"`
	FieldConfig     *fieldConfig     `json:"fieldConfig,omitempty"`
	Options         map[string]any   `json:"options,omitempty"`
	Targets         []panelTarget    `json:"targets,omitempty"`
	Transformations []transformation `json:"transformations,omitempty"`
	Collapsed       *bool            `json:"collapsed,omitempty"`
	Panels          *[]panel         `json:"panels,omitempty"` // of a collapsed row
}

// gridPos is a position in grid units; a dashboard has gridWidth columns.
type gridPos struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

type panelTarget struct {
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
	Color      *fieldColor    `json:"color,omitempty"`
	Thresholds *thresholds    `json:"thresholds,omitempty"`
	Mappings   []valueMapping `json:"mappings"`
	Custom     map[string]any `json:"custom,omitempty"`
}

type fieldColor struct {
	Mode string `json:"mode"`
}

type thresholds struct {
	Mode  string          `json:"mode"`
	Steps []thresholdStep `json:"steps"`
}

// thresholdStep is a color from Value upwards; the first step has a null value.
type thresholdStep struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// valueMapping maps values to texts.
type valueMapping struct {
	Type    string                 `json:"type"`
	Options map[string]mappedValue `json:"options"`
}

type mappedValue struct {
	Text  string `json:"text"`
	Color string `json:"color"`
	Index int    `json:"index"`
}

type override struct {
	Matcher    overrideMatcher    `json:"matcher"`
	Properties []overrideProperty `json:"properties"`
}

type overrideMatcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

type overrideProperty struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

type transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

const gridWidth = 24

// layout numbers the panels and places each row from left to right.
func layout(rows [][]*panel) []*panel {
	all := []*panel{}
	x, y, height := 0, 0, 0
	for _, panels := range rows {
		for _, p := range panels {
			if x+p.GridPos.W > gridWidth {
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

// newRow returns a heading and the panels below the heading.
func newRow(title string, panels ...*panel) []*panel {
	return append([]*panel{{Type: "row", Title: title, GridPos: gridPos{W: gridWidth, H: 1}, Collapsed: new(false), Panels: &[]panel{}}}, panels...)
}

func newPanel(kind, title, description string, w, h int) *panel {
	return &panel{
		Type: kind, Title: title, Description: description, GridPos: gridPos{W: w, H: h}, Datasource: &selectedDatasource,
		FieldConfig: &fieldConfig{Defaults: field{Mappings: []valueMapping{}}, Overrides: []override{}},
	}
}

// statPanel returns a panel with a single number.
func statPanel(title, description, expr string) *panel {
	p := newPanel("stat", title, description, 4, 4)
	p.Options = map[string]any{
		"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
		"percentChangeColorMode": "standard", "showPercentChange": false, "wideLayout": true,
		"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	p.Targets = []panelTarget{{Datasource: selectedDatasource, Expr: oneLine(expr), RefID: "A", Instant: true}}
	return p.thresholds("text")
}

// timeSeriesPanel returns a panel with numbers over time.
func timeSeriesPanel(title, description, unit string) *panel {
	p := newPanel("timeseries", title, description, 12, 8)
	p.Options = map[string]any{
		"legend":  map[string]any{"calcs": []string{}, "displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
	p.FieldConfig.Defaults.Custom = map[string]any{"drawStyle": "line", "fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "spanNulls": false}
	return p.unit(unit)
}

// stateTimelinePanel returns a panel with states over time.
func stateTimelinePanel(title, description string, values ...mappedValue) *panel {
	p := newPanel("state-timeline", title, description, 24, 7)
	p.Options = map[string]any{
		"alignValue": "left", "mergeValues": true, "rowHeight": 0.85, "showValue": "auto",
		"legend":  map[string]any{"calcs": []string{}, "displayMode": "list", "placement": "bottom", "showLegend": false},
		"tooltip": map[string]any{"mode": "single", "sort": "none"},
	}
	p.FieldConfig.Defaults.Custom = map[string]any{"fillOpacity": 75, "lineWidth": 0}
	return p.mappings(values...)
}

// column is a label of a table's rows, or the value of a query ("A", "B").
type column struct {
	key, title string
	unit       string
	mappings   []mappedValue
	thresholds []threshold // colors of values
	link       string      // URL of the cell's link
	hidden     bool        // a query that only selects the rows
}

// tablePanel returns a table with a row for each set of labels, shared by all queries.
func tablePanel(title, description string, columns ...column) *panel {
	p := newPanel("table", title, description, 24, 8)
	p.Options = map[string]any{"cellHeight": "sm", "frameIndex": 0, "showHeader": true}
	p.FieldConfig.Defaults.Custom = map[string]any{"align": "auto", "cellOptions": map[string]any{"type": "auto"}, "filterable": true}
	order, names, hidden := map[string]any{}, map[string]any{}, map[string]any{"Time": true}
	for i, c := range columns {
		keys := []string{c.key}
		if len(c.key) == 1 {
			keys = []string{"Value #" + c.key}
		}
		if c.key == "A" {
			keys = append(keys, "Value") // name of the value in a table with a single query
		}
		for _, name := range keys {
			order[name], names[name] = i, c.title
			if c.hidden {
				hidden[name] = true
			}
		}
		if properties := c.properties(); len(properties) > 0 {
			p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, override{overrideMatcher{"byName", c.title}, properties})
		}
	}
	p.Transformations = []transformation{
		{"merge", map[string]any{}},
		{"organize", map[string]any{"excludeByName": hidden, "indexByName": order, "renameByName": names}},
	}
	return p
}

func (c column) properties() (all []overrideProperty) {
	if c.unit != "" {
		all = append(all, overrideProperty{"unit", c.unit})
	}
	if len(c.mappings) > 0 {
		all = append(all, overrideProperty{"mappings", newMappings(c.mappings)}, overrideProperty{"custom.cellOptions", map[string]any{"type": "color-text"}})
	}
	if len(c.thresholds) > 0 {
		all = append(all, overrideProperty{"thresholds", newThresholds("text", c.thresholds)}, overrideProperty{"custom.cellOptions", map[string]any{"type": "color-text"}})
	}
	if c.link != "" {
		all = append(all, overrideProperty{"links", []map[string]any{{"title": "Show", "url": c.link}}})
	}
	return all
}

// query adds a query with the legend of its series; tables have no legend.
func (p *panel) query(expr, legend string) *panel {
	t := panelTarget{Datasource: selectedDatasource, Expr: oneLine(expr), RefID: string(rune('A' + len(p.Targets))), LegendFormat: legend}
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

// size sets the size in grid units.
func (p *panel) size(w, h int) *panel {
	p.GridPos.W, p.GridPos.H = w, h
	return p
}

// ratio sets the axis to 0–100 %.
func (p *panel) ratio() *panel {
	p.FieldConfig.Defaults.Min, p.FieldConfig.Defaults.Max = new(0.0), new(1.0)
	return p.unit("percentunit")
}

// stack stacks the series as parts of a whole.
func (p *panel) stack() *panel {
	p.FieldConfig.Defaults.Min = new(0.0)
	p.FieldConfig.Defaults.Custom["stacking"] = map[string]any{"group": "A", "mode": "normal"}
	p.FieldConfig.Defaults.Custom["fillOpacity"] = 30
	return p
}

// bars draws bars, for rare events.
func (p *panel) bars() *panel {
	p.FieldConfig.Defaults.Custom["drawStyle"] = "bars"
	p.FieldConfig.Defaults.Custom["fillOpacity"] = 80
	return p
}

// noValue sets the text of a panel without series.
func (p *panel) noValue(text string) *panel {
	p.FieldConfig.Defaults.NoValue = text
	return p
}

// threshold is a color from a value upwards.
type threshold struct {
	value float64
	color string
}

// thresholds sets the colors of values, and dashed lines in a time series.
func (p *panel) thresholds(lowest string, above ...threshold) *panel {
	p.FieldConfig.Defaults.Thresholds = newThresholds(lowest, above)
	if p.Type == "timeseries" {
		p.FieldConfig.Defaults.Custom["thresholdsStyle"] = map[string]any{"mode": "dashed"}
		return p
	}
	p.FieldConfig.Defaults.Color = &fieldColor{"thresholds"}
	return p
}

func newThresholds(lowest string, above []threshold) *thresholds {
	t := &thresholds{Mode: "absolute", Steps: []thresholdStep{{Color: lowest}}}
	for _, s := range above {
		t.Steps = append(t.Steps, thresholdStep{s.color, &s.value})
	}
	return t
}

// mappings sets the texts of the values 0, 1, 2 …; a value without text is shown as a number.
func (p *panel) mappings(values ...mappedValue) *panel {
	p.FieldConfig.Defaults.Mappings = newMappings(values)
	return p
}

func newMappings(values []mappedValue) []valueMapping {
	options := map[string]mappedValue{}
	for i, w := range values {
		if w.Index = i; w.Text != "" {
			options[fmt.Sprint(i)] = w
		}
	}
	return []valueMapping{{"value", options}}
}

var (
	yesIsGood        = []mappedValue{{Text: "no", Color: "red"}, {Text: "yes", Color: "green"}}
	allocationValues = []mappedValue{{Text: "unallocated", Color: "transparent"}, {Text: "allocated", Color: "blue"}}
)

// Links from a table row to the dashboard of the device, node, namespace or pod.
const (
	deviceURL    = "/d/podgauge-device?${datasource:queryparam}&var-node=${__data.fields.Node}&var-gpu=${__data.fields.UUID}&${__url_time_range}"
	nodeURL      = "/d/podgauge-device?${datasource:queryparam}&var-node=${__data.fields.Node}&${__url_time_range}"
	namespaceURL = "/d/podgauge-workload?${datasource:queryparam}&var-namespace=${__data.fields.Namespace}&${__url_time_range}"
	podURL       = "/d/podgauge-workload?${datasource:queryparam}&var-namespace=${__data.fields.Namespace}&var-pod=${__data.fields.Pod}&${__url_time_range}"
)
