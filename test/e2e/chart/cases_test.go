package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// chartCase is a set of values. The files in testdata/values and in deploy/helm/podgauge/examples are cases as well.
type chartCase struct {
	name   string
	values string
}

var chartCases = []chartCase{
	{"default", ``},
	{"processes", `processes: {enabled: true}`},
	{"kernel-log", `kernelLog: {enabled: true}`},
	{"mig-single", `migStrategy: single`},
	{"mig-seen", `mig: {monitor: true}`},
	{"cdi", `deviceListStrategy: envvar,cdi-cri`},
	{"mps", `mps: {root: /run/nvidia/mps}`},
	{"volume-mounts", `{driver: {injection: volume-mounts}, deviceListStrategy: volume-mounts}`},
	{"no-runtime-class", `{runtimeClassName: "", gpuNodesOnly: false, tolerations: [{operator: Exists}]}`},
	{"measure-only", `{devicePlugin: {enabled: false}, podsAPI: {enabled: false}, state: {enabled: false}, retired: {enabled: false}}`},
	{"named-config", `config: {name: gpu-configs, default: shared}`},
	{"empty-config", `config: {map: {a: "version: v1", b: "version: v1"}, fallbackStrategies: [named, single, empty]}`},
	{"web-secret", `{webConfig: {existingSecret: podgauge-web, key: web-config.yml}, probes: {port: 9500}}`},
	{"counters", `{metrics: {dcgm: 4.9}, customMetricsConfigMap: exporter-metrics-config-map}`},
	{"service-monitor", `{serviceMonitor: {enabled: true, interval: 15s, scrapeTimeout: 10s}, prometheusRule: {enabled: true, recording: false, reliability: false, profiling: true, alerts: {PodgaugeIdleDeviceAllocated: {enabled: false}}}}`},
	{"annotations", `{prometheusAnnotations: {enabled: true}, service: {enabled: false}, podAnnotations: {example.com/team: gpu}}`},
	{"network-policy", `networkPolicy: {enabled: true, from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}`},
	{"kubernetes", `{podsAPI: {enabled: false}, metrics: {podUID: true}, kubernetes: {events: true, nodeCondition: true, deviceTaints: true, pods: true, configLabel: nvidia.com/device-plugin.config, adminClaims: true}, config: {map: {a: "version: v1", b: "version: v1"}, default: a}, networkPolicy: {enabled: true, apiServer: {cidrs: [10.0.0.1/32, "fd00::1/128"], ports: [16443]}}}`},
	{"kubernetes-events", `{kubernetes: {events: true, admissionPolicy: {enabled: false}}, prometheusAnnotations: {enabled: true}}`},
	{"closed", `{networkPolicy: {fromNamespaces: {gpu-metrics: allowed}, from: [{ipBlock: {cidr: 10.0.0.1/32}}]}, web: {metricsOnly: true, allowedHosts: [gpu.example.com]}}`},
	{"no-network-policy", `networkPolicy: {enabled: false}`},
	{"host-network", `{hostNetwork: true, openshift: {scc: true}, webConfig: {existingSecret: podgauge-web, key: web-config.yml}, metrics: {port: 9410}, podMonitor: {enabled: true, honorLabels: false}}`},
	{"on-delete", `{updateStrategy: {type: OnDelete}, priorityClassName: "", serviceAccount: {create: false}}`},
	{"surge", `updateStrategy: {rollingUpdate: {maxSurge: 10%}}`},
	{"simulated", `simulate: hardware`},
	{"simulated-node", `{simulate: node, devicePlugin: {enabled: true}}`},
}

const testDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// allCases returns all cases, including those in files.
func allCases(t *testing.T) []chartCase {
	t.Helper()
	found := slices.Clone(chartCases)
	for _, dir := range []string{"testdata/values", chartDir + "/examples"} {
		paths, err := filepath.Glob(dir + "/*.yaml")
		if err != nil || len(paths) == 0 {
			t.Fatalf("no cases in %s (%v)", dir, err)
		}
		for _, path := range paths {
			found = append(found, chartCase{strings.TrimSuffix(filepath.Base(path), ".yaml"), testfile.Read(t, path)})
		}
	}
	return found
}

// eachPod calls a function with the pod of each case.
func eachPod(t *testing.T, call func(name string, pod core.PodTemplateSpec)) {
	t.Helper()
	for _, c := range allCases(t) {
		call(c.name, decodeAll[apps.DaemonSet](t, mustRender(t, c.values))[0].Spec.Template)
	}
}

// TestGolden compares the objects of each case with a golden file. make e2e-cluster checks these files with a real API server.
func TestGolden(t *testing.T) {
	known := map[string]bool{}
	for _, c := range allCases(t) {
		path := "testdata/" + c.name + ".yaml"
		if known[path] {
			t.Errorf("duplicate case %s", c.name)
		}
		known[path] = true
		t.Run(c.name, func(t *testing.T) {
			testfile.CheckGolden(t, *update, path, string(joinObjects(abridge(mustRender(t, c.values)))))
		})
	}
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, path := range files {
		if !known[path] {
			t.Errorf("no case for %s", path)
		}
		if *update && !known[path] {
			os.Remove(path)
		}
	}
}

// abridge returns the objects with only the first line of each dashboard. TestDashboards checks the dashboards.
func abridge(documents []chartObject) []chartObject {
	short := slices.Clone(documents)
	for i, d := range short {
		if d.template == "dashboards.yaml" {
			lines := strings.SplitAfter(string(d.text), "\n")
			end := slices.IndexFunc(lines, func(line string) bool { return strings.HasSuffix(line, ".json: |\n") })
			short[i].text = []byte(strings.Join(lines[:end+1], "") + "    {}\n")
		}
	}
	return short
}

// TestManifest checks that deploy/podgauge.yaml has the chart's objects and namespace for kubectl apply, without helm's labels.
func TestManifest(t *testing.T) {
	const heading = "# podgauge with the chart's defaults (deploy/helm/podgauge), with the namespace: kubectl apply -f deploy/podgauge.yaml\n# Generated by make golden.\n"
	text := string(joinObjects(mustRender(t, `namespace: {create: true}`)))
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "managed-by: Helm") && !strings.Contains(line, "helm.sh/chart:") {
			kept.WriteString(line)
		}
	}
	testfile.CheckGolden(t, *update, root+"/deploy/podgauge.yaml", heading+kept.String())
}
