// Package dashboards makes what people look at: Grafana's dashboards, as JSON, and the recording
// rules that keep the fleet's one quick. The files that lie beside this one are made by it, and
// so is deploy/rules/podgauge.recording.yaml: make golden writes them anew. What is asked for in
// them is checked against what the binary writes by test/external/openmetrics.
package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Files are the dashboards by the name of their file.
func Files() map[string][]byte {
	files := map[string][]byte{}
	for name, d := range map[string]dashboard{
		"fleet.json":          fleetDashboard(false),
		"fleet-recorded.json": fleetDashboard(true),
		"workload.json":       workloadDashboard(),
		"device.json":         deviceDashboard(),
		"podgauge.json":       podgaugeDashboard(),
	} {
		files[name] = d.encode()
	}
	return files
}

// dashboard is one of Grafana's, as far as ours go.
type dashboard struct {
	UID           string          `json:"uid"`
	Title         string          `json:"title"`
	Description   string          `json:"description"`
	Tags          []string        `json:"tags"`
	SchemaVersion int             `json:"schemaVersion"`
	Editable      bool            `json:"editable"`
	GraphTooltip  int             `json:"graphTooltip"` // 1: one crosshair in all panels
	Refresh       string          `json:"refresh"`
	Time          timeRange       `json:"time"`
	Timezone      string          `json:"timezone"`
	Links         []dashboardLink `json:"links"`
	Templating    variables       `json:"templating"`
	Annotations   annotations     `json:"annotations"`
	Panels        []*panel        `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// dashboardLink leads to all dashboards that have the tag, and takes time and variables along.
type dashboardLink struct {
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Tooltip     string   `json:"tooltip"`
	Icon        string   `json:"icon"`
	Tags        []string `json:"tags"`
	TargetBlank bool     `json:"targetBlank"`
	AsDropdown  bool     `json:"asDropdown"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
}

type variables struct {
	List []variable `json:"list"`
}

// variable is one that Grafana shows at the top. A datasource's has Query as text.
type variable struct {
	Name        string         `json:"name"`
	Label       string         `json:"label"`
	Description string         `json:"description"`
	Type        string         `json:"type"`
	Datasource  *datasource    `json:"datasource,omitempty"`
	Query       any            `json:"query"`
	Refresh     int            `json:"refresh,omitempty"` // 2: when the range of time changes
	Sort        int            `json:"sort,omitempty"`
	Multi       bool           `json:"multi"`
	IncludeAll  bool           `json:"includeAll"`
	AllValue    string         `json:"allValue,omitempty"`
	Current     *variableValue `json:"current,omitempty"`
}

type variableValue struct {
	Text  []string `json:"text"`
	Value []string `json:"value"`
}

type variableQuery struct {
	QryType int    `json:"qryType"` // 1: label values
	Query   string `json:"query"`
	RefID   string `json:"refId"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// selectedDatasource is the Prometheus that the reader chose.
var selectedDatasource = datasource{Type: "prometheus", UID: "${datasource}"}

type annotations struct {
	List []annotation `json:"list"`
}

// annotation draws a line where a sample's value, in milliseconds, says when something was.
type annotation struct {
	Name            string      `json:"name"`
	Datasource      datasource  `json:"datasource"`
	Enable          bool        `json:"enable"`
	IconColor       string      `json:"iconColor"`
	Target          panelTarget `json:"target"`
	TitleFormat     string      `json:"titleFormat"`
	TextFormat      string      `json:"textFormat"`
	TagKeys         string      `json:"tagKeys"`
	UseValueForTime string      `json:"useValueForTime"`
}

// newDashboard puts a dashboard together. The panels are numbered and placed in the order they have.
func newDashboard(uid, title, description string, vars []variable, notes []annotation, rows ...[]*panel) dashboard {
	if notes == nil {
		notes = []annotation{}
	}
	return dashboard{
		UID:           "podgauge-" + uid,
		Title:         "podgauge / " + title,
		Description:   description,
		Tags:          []string{"podgauge"},
		SchemaVersion: 41,
		Editable:      true,
		GraphTooltip:  1,
		Refresh:       "30s",
		Time:          timeRange{From: "now-6h", To: "now"},
		Timezone:      "browser",
		Links: []dashboardLink{{
			Type: "dashboards", Title: "podgauge", Tooltip: "podgauge's other dashboards, with time and variables", Icon: "external link", Tags: []string{"podgauge"}, IncludeVars: true, KeepTime: true,
		}},
		Templating:  variables{List: vars},
		Annotations: annotations{List: notes},
		Panels:      layout(rows),
	}
}

// encode is the dashboard's file. What does not change makes the same text.
func (d dashboard) encode() []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		panic(err) // nothing in it can fail to be encoded
	}
	return text.Bytes()
}

// Matchers of what the reader chose.
const (
	matchNode = `node=~"$node"`
	matchGPU  = matchNode + `,uuid=~"$gpu"`
	matchPod  = matchGPU + `,namespace=~"$namespace",pod=~"$pod",container=~"$container"`
)

// The variables have one name each in all dashboards, so that links take them along.
var (
	varSource = variable{
		Name: "datasource", Label: "Prometheus", Description: "The Prometheus that scrapes podgauge and kube-state-metrics.",
		Type: "datasource", Query: "prometheus",
	}
	varNode = queryVariable("node", "Node", "Nodes, by the label that relabelling adds.", `label_values(podgauge_nvml_up, node)`, ".*")
	varGPU  = queryVariable("gpu", "GPU", "GPUs of the chosen nodes, by UUID.", `label_values(nvidia_gpu_up{`+matchNode+`}, uuid)`, ".*")
	// All means all that are held: what nobody holds has the label, empty.
	varNamespace = queryVariable("namespace", "Namespace", "Namespaces with pods that hold devices of the chosen nodes.",
		`label_values(nvidia_gpu_allocation_last_seen_timestamp_seconds{`+matchNode+`}, namespace)`, ".+")
	varPod = queryVariable("pod", "Pod", "Pods that hold, or held lately, devices of the chosen nodes.",
		`label_values(nvidia_gpu_allocation_last_seen_timestamp_seconds{`+matchNode+`,namespace=~"$namespace"}, pod)`, ".+")
	varContainer = queryVariable("container", "Container", "Containers of those pods.",
		`label_values(nvidia_gpu_allocation_last_seen_timestamp_seconds{`+matchNode+`,namespace=~"$namespace",pod=~"$pod"}, container)`, ".+")
)

// queryVariable is a variable of which several values can be chosen, or all.
func queryVariable(name, label, description, query, all string) variable {
	return variable{
		Name: name, Label: label, Description: description, Type: "query", Datasource: &selectedDatasource,
		Query:   variableQuery{QryType: 1, Query: query, RefID: "PrometheusVariableQueryEditor-VariableQuery"},
		Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: all,
		Current: &variableValue{Text: []string{"All"}, Value: []string{"$__all"}},
	}
}

// newAnnotation is an annotation of the family, whose samples are times in seconds.
func newAnnotation(name, color, family, matchers, title, text, tags string) annotation {
	return annotation{
		Name: name, Datasource: selectedDatasource, Enable: true, IconColor: color,
		Target:      panelTarget{Datasource: selectedDatasource, Expr: fmt.Sprintf("%s{%s} * 1000", family, matchers), RefID: "Anno"},
		TitleFormat: title, TextFormat: text, TagKeys: tags, UseValueForTime: "on",
	}
}

// oneLine writes an expression that was broken over lines on one.
func oneLine(expr string) string { return strings.Join(strings.Fields(expr), " ") }
