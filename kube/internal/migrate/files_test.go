package migrate_test

import (
	"strings"
	"testing"

	"github.com/podgauge/podgauge/kube/internal/migrate"
)

// files returns the report on files, and their translated texts by name.
func files(texts map[string]string) (*migrate.Report, map[string]string) {
	var all []*migrate.File
	for _, name := range []string{"a.json", "b.yaml", "c.yaml"} {
		if text, ok := texts[name]; ok {
			all = append(all, &migrate.File{Name: name, Data: []byte(text)})
		}
	}
	r := migrate.Files(all, migrate.Options{})
	written := map[string]string{}
	for _, f := range all {
		if f.Translated != nil {
			written[f.Name] = string(f.Translated)
		}
	}
	return r, written
}

// TestTranslatedFiles checks that a copy has translated queries, legends and templates, and is otherwise the same.
func TestTranslatedFiles(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"dashboard": {"a.json", `{
  "title": "A<b>\u00e9",
  "annotations": {"list": [{"name": "Hot", "expr": "DCGM_FI_DEV_GPU_TEMP > 90", "titleFormat": "{{Hostname}}"}]},
  "rows": [ {"panels": [{"title":"Load", "targets":[
      {"expr": "DCGM_FI_DEV_GPU_UTIL{gpu=~\"$gpu\"}", "legendFormat": "{{Hostname}} {{ gpu }}", "step": 1.50}]}]}],
  "panels": [{"title": "Table",
    "targets": [{"expr": "max by (Hostname, UUID) (DCGM_FI_DEV_GPU_TEMP)", "format": "table"}, {"expr": "up"}],
    "fieldConfig": {"defaults": {"displayName": "${__field.labels.Hostname}", "links": [{"url": "/d/x?var-h=${__data.fields.Hostname}"}]}},
    "transformations": [{"id": "organize", "options": {"renameByName": {"Hostname": "Node", "gpu": "GPU"}}}]}],
  "templating": {"list": [
    {"type": "query", "name": "h", "definition": "label_values(DCGM_FI_DEV_GPU_TEMP, Hostname)",
     "query": {"query": "label_values(DCGM_FI_DEV_GPU_TEMP, Hostname)", "refId": "A"}},
    {"type": "query", "name": "u", "query": "query_result(DCGM_FI_DEV_GPU_TEMP)", "regex": "/UUID=\"([^\"]*)\"/"}]}
}
`, `{
  "title": "A<b>\u00e9",
  "annotations": {"list": [{"name": "Hot", "expr": "nvidia_gpu_temperature_celsius{sensor=\"gpu\"} > 90", "titleFormat": "{{node}}"}]},
  "rows": [ {"panels": [{"title":"Load", "targets":[
      {"expr": "nvidia_gpu_utilization_ratio{gpu=~\"$gpu\"} * 100", "legendFormat": "{{node}} {{ gpu }}", "step": 1.50}]}]}],
  "panels": [{"title": "Table",
    "targets": [{"expr": "max by (node, uuid) (nvidia_gpu_temperature_celsius{sensor=\"gpu\"})", "format": "table"}, {"expr": "up"}],
    "fieldConfig": {"defaults": {"displayName": "${__field.labels.node}", "links": [{"url": "/d/x?var-h=${__data.fields.node}"}]}},
    "transformations": [{"id": "organize", "options": {"renameByName": {"node": "Node", "gpu": "GPU"}}}]}],
  "templating": {"list": [
    {"type": "query", "name": "h", "definition": "label_values(nvidia_gpu_temperature_celsius{sensor=\"gpu\"}, node)",
     "query": {"query": "label_values(nvidia_gpu_temperature_celsius{sensor=\"gpu\"}, node)", "refId": "A"}},
    {"type": "query", "name": "u", "query": "query_result(nvidia_gpu_temperature_celsius{sensor=\"gpu\"})", "regex": "/uuid=\"([^\"]*)\"/"}]}
}
`},
		"rules": {"b.yaml", `# GPUs
groups:
  - name: gpus
    rules:
      - record: node:gpu_util:avg # used below
        expr: avg by (Hostname, modelName) (DCGM_FI_DEV_GPU_UTIL)
      - alert: Busy
        expr: node:gpu_util:avg{Hostname=~"a.*"} > 90
        annotations:
          summary: '{{ $labels.Hostname }} ({{ $labels.modelName }}): {{ $value }}'
      - alert: Hot
        expr: |
          DCGM_FI_DEV_GPU_TEMP
            > 85
        annotations: {summary: "{{ $labels.Hostname }} {{ $labels.modelName }}"}
      - alert: Down
        expr: up == 0
`, `# GPUs
groups:
  - name: gpus
    rules:
      - record: node:gpu_util:avg # used below
        expr: avg by (node, model) (nvidia_gpu_utilization_ratio * on (node, uuid, mig_uuid) group_left (model) nvidia_gpu_info * 100)
      - alert: Busy
        expr: node:gpu_util:avg{model!="x",node=~"a.*"} > 90
        annotations:
          summary: '{{ $labels.node }} ({{ $labels.model }}): {{ $value }}'
      - alert: Hot
        expr: |-
          (nvidia_gpu_temperature_celsius{sensor="gpu"} * on (node, uuid, mig_uuid) group_left (model) nvidia_gpu_info) > 85
        annotations: {summary: "{{ $labels.node }} {{ $labels.model }}"}
      - alert: Down
        expr: up == 0
`},
		"recorded series": {"b.yaml", `groups:
  - rules:
      - record: b:x
        expr: max by (Hostname) (a:x)
      - record: a:x
        expr: DCGM_FI_DEV_FB_USED
      - record: c:x
        expr: label_replace(avg by (instance) (DCGM_FI_DEV_GPU_TEMP), "Hostname", "$1", "instance", "(.*)")
      - record: d:x
        expr: sum by (GPU_I_ID) (DCGM_FI_DEV_FB_USED)
      - alert: X
        expr: b:x{Hostname="a"} > 1 or d:x{GPU_I_ID=""} > 1
      - alert: "Y"
        expr: c:x{Hostname="a"} > 1
`, `groups:
  - rules:
      - record: b:x
        expr: max by (node) (a:x)
      - record: a:x
        expr: nvidia_gpu_memory_used_bytes / 1048576
      - record: c:x
        expr: label_replace(avg by (instance) (nvidia_gpu_temperature_celsius{sensor="gpu"}), "Hostname", "$1", "instance", "(.*)")
      - record: d:x
        expr: sum by (gi) ((nvidia_gpu_memory_used_bytes unless on (node, uuid, mig_uuid) nvidia_gpu_mig_enabled{when="now"} == 1) * on (node, uuid, mig_uuid) group_left (gi) nvidia_gpu_info / 1048576)
      - alert: X
        expr: b:x{node="a"} > 1 or d:x{gi=""} > 1
      - alert: "Y"
        expr: c:x{Hostname="a"} > 1
`},
		"rules of Grafana": {"b.yaml", `groups:
  - rules:
      - title: Hot
        data:
          - refId: A
            model: {expr: DCGM_FI_DEV_GPU_TEMP, legendFormat: "{{gpu}}"}
          - refId: B
            model: {type: threshold, expression: A}
        annotations: {summary: "{{ $labels.Hostname }} {{ $labels.modelName }}"}
---
kind: GrafanaAlertRuleGroup
spec:
  rules:
    - title: Busy
      data:
        - model: {expr: DCGM_FI_DEV_GPU_UTIL}
      labels: {node: "{{ $values.A.Labels.Hostname }}"}
`, `groups:
  - rules:
      - title: Hot
        data:
          - refId: A
            model: {expr: 'nvidia_gpu_temperature_celsius{sensor="gpu"} * on (node, uuid, mig_uuid) group_left (model) nvidia_gpu_info', legendFormat: "{{gpu}}"}
          - refId: B
            model: {type: threshold, expression: A}
        annotations: {summary: "{{ $labels.node }} {{ $labels.model }}"}
---
kind: GrafanaAlertRuleGroup
spec:
  rules:
    - title: Busy
      data:
        - model: {expr: nvidia_gpu_utilization_ratio * 100}
      labels: {node: "{{ $values.A.Labels.node }}"}
`},
		"prometheus-adapter": {"b.yaml", `rules:
  - seriesQuery: DCGM_FI_DEV_GPU_UTIL{exported_pod!="",modelName=~"A.*"}
    resources: {template: exported_<<.Resource>>}
    name: {matches: "^DCGM_FI_DEV_(.*)$", as: "gpu_${1}"}
    metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
  - seriesQuery: DCGM_FI_DEV_FB_USED
    resources: {template: "<<.Resource>>"}
    name: {matches: "^DCGM_(FI_.*)$"}
    metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
  - seriesQuery: DCGM_FI_DEV_POWER_USAGE
    name: {as: power}
    metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
  - seriesQuery: requests_total
    metricsQuery: rate(<<.Series>>{<<.LabelMatchers>>}[5m])
`, `rules:
  - seriesQuery: nvidia_gpu_utilization_ratio{pod!=""}
    resources: {template: <<.Resource>>}
    name:
      as: gpu_GPU_UTIL
    metricsQuery: avg by (<<.GroupBy>>) (nvidia_gpu_utilization_ratio{<<.LabelMatchers>>} * 100)
  - seriesQuery: nvidia_gpu_memory_used_bytes
    resources: {template: "<<.Resource>>"}
    name:
      as: FI_DEV_FB_USED
    metricsQuery: max by (<<.GroupBy>>) (nvidia_gpu_memory_used_bytes{<<.LabelMatchers>>} / 1048576)
  - seriesQuery: nvidia_gpu_power_watts
    name: {as: power}
    metricsQuery: max by (<<.GroupBy>>) (nvidia_gpu_power_watts{<<.LabelMatchers>>})
  - seriesQuery: requests_total
    metricsQuery: rate(<<.Series>>{<<.LabelMatchers>>}[5m])
`},
		"rendered by Helm": {"b.yaml", `# License

# Source: rules.yaml
groups:
  - rules:
      - alert: Hot
        expr: DCGM_FI_DEV_GPU_TEMP > 85
# end of the rules
---
# Source: account.yaml
kind: ServiceAccount
---
`, `# License

# Source: rules.yaml
groups:
  - rules:
      - alert: Hot
        expr: nvidia_gpu_temperature_celsius{sensor="gpu"} > 85

# end of the rules
---
# Source: account.yaml
kind: ServiceAccount
---

`},
		"objects": {"c.yaml", `apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
spec:
  groups:
    - rules:
        - alert: Hot
          expr: DCGM_FI_DEV_GPU_TEMP > 85
---
kind: ScaledObject
metadata:
  name: llm
spec:
  triggers:
    - type: cron
    - type: prometheus
      metadata: {query: 'avg(DCGM_FI_DEV_GPU_UTIL{pod=~"llm-.*"})', threshold: "70"}
---
kind: HorizontalPodAutoscaler
metadata:
  name: embed
spec:
  metrics:
    - type: Pods
      pods: {metric: {name: DCGM_FI_DEV_FB_USED}}
---
kind: ConfigMap
data:
  config.yaml: |
    rules:
      - seriesQuery: DCGM_FI_DEV_FB_USED{exported_pod!="",modelName=~"A.*"}
        resources:
          overrides:
            exported_pod: {resource: pod}
        metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
  gpu.json: |
    {"panels": [{"title": "p", "targets": [{"expr": "DCGM_FI_DEV_GPU_UTIL"}]}]}
`, `apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
spec:
  groups:
    - rules:
        - alert: Hot
          expr: nvidia_gpu_temperature_celsius{sensor="gpu"} > 85
---
kind: ScaledObject
metadata:
  name: llm
spec:
  triggers:
    - type: cron
    - type: prometheus
      metadata: {query: 'avg(nvidia_gpu_utilization_ratio{pod=~"llm-.*"} * 100)', threshold: "70"}
---
kind: HorizontalPodAutoscaler
metadata:
  name: embed
spec:
  metrics:
    - type: Pods
      pods: {metric: {name: DCGM_FI_DEV_FB_USED}}
---
kind: ConfigMap
data:
  config.yaml: |
    rules:
      - seriesQuery: nvidia_gpu_memory_used_bytes{pod!=""}
        resources:
          overrides:
            pod: {resource: pod}
        metricsQuery: avg by (<<.GroupBy>>) (nvidia_gpu_memory_used_bytes{<<.LabelMatchers>>} / 1048576)
        name:
          as: DCGM_FI_DEV_FB_USED
  gpu.json: |
    {"panels": [{"title": "p", "targets": [{"expr": "nvidia_gpu_utilization_ratio * 100"}]}]}
`},
	} {
		text := strings.ReplaceAll(c.text, `Hostname=~"a.*"}`, `Hostname=~"a.*",modelName!="x"}`)
		r, written := files(map[string]string{c.file: text})
		if got := written[c.file]; got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
		if !r.Complete() {
			t.Errorf("%s: incomplete: %+v", name, r)
		}
	}
}

// TestErrors checks that a bad file or query is one error with its place, and that the rest is translated.
func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		texts map[string]string
		want  []string // errors, and reasons with their place
	}{
		"JSON": {map[string]string{"a.json": "{\n  \"panels\": [}\n"}, []string{"a.json: parse JSON: line 2: invalid character '}' looking for beginning of value"}},
		"YAML": {map[string]string{"b.yaml": "groups:\n  - {\n"}, []string{"b.yaml: parse YAML: line 2: did not find expected node content"}},
		"template": {
			map[string]string{"b.yaml": "{{ if .x }}\ngroups: []\n"},
			[]string{"b.yaml: parse YAML: line 1: did not find expected <document start>"},
		},
		"other kinds": {
			map[string]string{"b.yaml": "kind: Pod\n---\nkind: List\nitems:\n- kind: X\n  query: DCGM_FI_DEV_GPU_TEMP\n"},
			[]string{"b.yaml: line 5: no dashboard, rules, ScaledObject, HorizontalPodAutoscaler or configuration of prometheus-adapter"},
		},
		"dashboard v2": {
			map[string]string{"a.json": `{"spec": {"elements": {"p": {"spec": {"expr": "DCGM_FI_DEV_GPU_TEMP"}}}}}`},
			[]string{"a.json: line 1: dashboard of schema v2 (elements): export it in the classic model"},
		},
		"empty":       {map[string]string{"b.yaml": ""}, nil},
		"wrong types": {map[string]string{"b.yaml": "groups: {rules: 5}\n", "a.json": `{"panels": [1, {"targets": {"expr": []}}], "templating": {"list": 3}}`}, nil},
		"alias":       {map[string]string{"b.yaml": "groups: &a\n  - rules: *a\n"}, nil},
		"PromQL": {
			map[string]string{"b.yaml": "groups: [{rules: [{alert: Hot, expr: 'DCGM_FI_DEV_GPU_TEMP >'}]}]"},
			[]string{"b.yaml: Hot: not valid PromQL: 1:23: parse error: unexpected end of input"},
		},
		"owner in a template": {
			map[string]string{"b.yaml": "groups: [{rules: [{alert: Rows, expr: DCGM_FI_DEV_ROW_REMAP_PENDING > 0, annotations: {a: '{{ $labels.pod }}'}}]}]"},
			[]string{"b.yaml: Rows: podgauge has no owner (label pod) for faults, limits, modes and properties of a device: join nvidia_gpu_allocated by hand"},
		},
		"label of no recorded series": {
			map[string]string{"b.yaml": "groups: [{rules: [{record: 'a:x', expr: DCGM_FI_DEV_GPU_TEMP}, {alert: Hot, expr: 'avg by (modelName) (a:x) > 85'}]}]"},
			[]string{"b.yaml: Hot: the recorded series has no label modelName: group by it in its rule"},
		},
		"embedded": {
			map[string]string{"b.yaml": "kind: ConfigMap\ndata: {x.json: '{\"panels\": \"DCGM_FI_DEV_GPU_TEMP\"'}"},
			[]string{"b.yaml: x.json: parse JSON: line 1: unexpected end of JSON input"},
		},
		"rule of prometheus-adapter": {
			map[string]string{"b.yaml": "rules: [{seriesQuery: 'DCGM_FI_DEV_FB_USED{hpc_job=\"\"}', metricsQuery: 'avg(<<.Series>>) by (<<.GroupBy>>)'}," +
				"{seriesQuery: DCGM_FI_DEV_ROW_REMAP_PENDING, metricsQuery: 'avg(<<.Series>>) by (<<.GroupBy>>)', resources: {overrides: {pod: {resource: pod}}}}]"},
			[]string{
				`b.yaml: rule of prometheus-adapter DCGM_FI_DEV_FB_USED{hpc_job=""}: hpc_job is on nvidia_gpu_allocation_info, which has a series for each job: join it by hand`,
				"b.yaml: rule of prometheus-adapter DCGM_FI_DEV_ROW_REMAP_PENDING: podgauge has no owner (label pod) for faults, limits, modes and properties of a device: join nvidia_gpu_allocated by hand",
			},
		},
		"owners and labels of nvidia_gpu_info": {
			map[string]string{"a.json": `{"templating": {"list": [{"type": "query", "name": "m", "query": "label_values(DCGM_FI_DEV_GPU_UTIL{exported_namespace=~\"$n\"}, modelName)"}]}}`},
			[]string{"a.json: $m: podgauge has no owner (label namespace) for faults, limits, modes and properties of a device: join nvidia_gpu_allocated by hand"},
		},
		"rules in JSON": {
			map[string]string{"a.json": `{"rules": [{"seriesQuery": "DCGM_FI_DEV_FB_USED", "metricsQuery": "<<.Series>>"}]}`},
			[]string{"a.json: rule of prometheus-adapter DCGM_FI_DEV_FB_USED: a rule in JSON gets no new key name: write it as YAML"},
		},
		"rules of prometheus-adapter": {
			map[string]string{"b.yaml": "rules:\n- {seriesQuery: DCGM_FI_DEV_FB_USED, metricsQuery: <<.Series>>, seriesFilters: [{is: ^DCGM_}]}\n" +
				"- {seriesQuery: DCGM_FI_DEV_FB_FREE, metricsQuery: <<.Series>>, name: {matches: (}}\n" +
				"- {seriesQuery: DCGM_FI_DEV_FB_TOTAL, metricsQuery: <<.Series>>, name: {matches: ^DCGM_FI_PROF}}\n" +
				"- {seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{hpc_job!=\"\"}', metricsQuery: DCGM_FI_DEV_GPU_TEMP}\n" +
				"- {seriesQuery: kube_pod_info, metricsQuery: DCGM_FI_DEV_GPU_TEMP}\n"},
			[]string{
				"b.yaml: rule of prometheus-adapter DCGM_FI_DEV_FB_USED: seriesFilters select names of dcgm-exporter: remove them",
				"b.yaml: rule of prometheus-adapter DCGM_FI_DEV_FB_FREE: name.matches is not a valid expression: error parsing regexp: missing closing ): `(`",
				"b.yaml: rule of prometheus-adapter DCGM_FI_DEV_FB_TOTAL: the rule gives its metric no name",
				`b.yaml: rule of prometheus-adapter DCGM_FI_DEV_GPU_UTIL{hpc_job!=""}: hpc_job is on nvidia_gpu_allocation_info, which has a series for each job: join it by hand`,
				"b.yaml: rule of prometheus-adapter kube_pod_info: seriesQuery selects a series of another exporter: translate the rule by hand",
			},
		},
		"HPA without a rule": {
			map[string]string{"b.yaml": "kind: HorizontalPodAutoscaler\nmetadata: {name: x}\nspec: {metrics: [{external: {metric: {name: DCGM_FI_DEV_GPU_UTIL}}}]}"},
			[]string{"b.yaml: HorizontalPodAutoscaler x: the name of a metric that prometheus-adapter serves: translate its rule together with this object, then the name stays"},
		},
	} {
		c.texts["c.yaml"] = "groups: [{rules: [{alert: x, expr: DCGM_FI_DEV_GPU_TEMP > 85}]}]"
		r, written := files(c.texts)
		got := r.Errors
		for _, q := range r.Queries {
			for _, reason := range q.Reasons {
				got = append(got, q.File+": "+q.Place+": "+reason)
			}
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if written["c.yaml"] == "" || r.Complete() != (len(c.want) == 0) {
			t.Errorf("%s: the next file is %q; complete: %t", name, written["c.yaml"], r.Complete())
		}
	}
}

// FuzzFiles checks that any file is translated or an error.
func FuzzFiles(f *testing.F) {
	f.Add(`{"panels": [{"targets": [{"expr": "DCGM_FI_DEV_GPU_TEMP", "legendFormat": "{{gpu}}"}]}], "x": [null, 1e9, true]}`)
	f.Add("groups:\n- rules:\n  - {record: a, expr: DCGM_FI_DEV_GPU_TEMP}\n  - {alert: b, expr: a > 1}\n---\nkind: List\nitems: []\n")
	f.Add("rules: [{seriesQuery: 'DCGM_FI_DEV_FB_USED{a!=\"\"}', metricsQuery: '<<.Series>>'}]")
	f.Fuzz(func(t *testing.T, text string) {
		files(map[string]string{"a.json": text})
	})
}
