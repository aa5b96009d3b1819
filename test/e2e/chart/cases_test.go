package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// chartCase is a set of values. The files in deploy/helm/podgauge/examples are cases as well.
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
	{"measure-only", `{devicePlugin: {enabled: false}, podsAPI: {enabled: false}, state: {enabled: false}}`},
	{"named-config", `config: {name: gpu-configs, default: shared}`},
	{"empty-config", `config: {map: {a: "version: v1", b: "version: v1"}, fallbackStrategies: [named, single, empty]}`},
	{"web-secret", `{webConfig: {existingSecret: podgauge-web, key: web-config.yml}, probes: {port: 9500}}`},
	{"service-monitor", `{serviceMonitor: {enabled: true, interval: 15s, scrapeTimeout: 10s}, prometheusRule: {enabled: true, recording: false, alerts: {PodgaugeIdleDeviceAllocated: {enabled: false}}}}`},
	{"annotations", `{prometheusAnnotations: {enabled: true}, service: {enabled: false}, podAnnotations: {example.com/team: gpu}}`},
	{"network-policy", `networkPolicy: {enabled: true, from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}`},
	{"kubernetes", `{podsAPI: {enabled: false}, metrics: {podUID: true}, kubernetes: {events: true, nodeCondition: true, pods: true, configLabel: nvidia.com/device-plugin.config}, config: {map: {a: "version: v1", b: "version: v1"}, default: a}, networkPolicy: {enabled: true, apiServer: {cidrs: [10.0.0.1/32, "fd00::1/128"], ports: [16443]}}}`},
	{"closed", `{networkPolicy: {fromNamespaces: {gpu-metrics: allowed}, from: [{ipBlock: {cidr: 10.0.0.1/32}}]}, web: {metricsOnly: true, allowedHosts: [gpu.example.com]}}`},
	{"no-network-policy", `networkPolicy: {enabled: false}`},
	{"host-network", `{hostNetwork: true, openshift: {scc: true}, webConfig: {existingSecret: podgauge-web, key: web-config.yml}, metrics: {port: 9410}, podMonitor: {enabled: true, honorLabels: false}}`},
	{"extras", `
global: {imageRegistry: registry.example.com:5000}
image: {registry: ignored.example.com}
revisionHistoryLimit: 2
dnsPolicy: Default
initContainers: [{name: wait, image: registry.example.com/wait}]
extraContainers: [{name: proxy, image: registry.example.com/proxy, ports: [{name: https, containerPort: 8443}]}]
networkPolicy: {ingress: [{ports: [{port: https, protocol: TCP}]}], egress: [{ports: [{port: 443, protocol: TCP}]}]}
serviceMonitor: {enabled: true, labels: {release: a}, additionalLabels: {team: gpu}, sampleLimit: 30000}
prometheusRule: {enabled: true, recording: false, namespace: monitoring, additionalLabels: {team: gpu}}
extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ include "podgauge.fullname" . }}-extra', namespace: '{{ include "podgauge.namespace" . }}'}, data: {port: '{{ .Values.metrics.port }}'}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: text
      namespace: other
`},
	{"on-delete", `{updateStrategy: {type: OnDelete}, priorityClassName: "", serviceAccount: {create: false}}`},
	{"simulated", `simulate: hardware`},
	{"simulated-node", `{simulate: node, devicePlugin: {enabled: true}}`},
	{"names", `
nameOverride: gauge
fullnameOverride: gpu-gauge
namespaceOverride: gpus
namespace: {create: true}
commonLabels: {team: gpu}
podLabels: {tier: node}
image: {repository: registry.example.com/gauge, digest: "sha256:` + testDigest + `", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
serviceAccount: {name: gauge, annotations: {example.com/role: none}}
`},
	{"everything", `
processes: {enabled: true}
kernelLog: {enabled: true}
driver: {injection: host}
nvidiaDriverRoot: /run/nvidia/driver
nvidiaDevRoot: /
config: {map: {default: "version: v1", shared: "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}"}}
migStrategy: mixed
failOnInitError: true
deviceListStrategy: envvar,cdi-annotations,cdi-cri
deviceIDStrategy: index
compatWithCPUManager: true
deviceDiscoveryStrategy: nvml
gdrcopyEnabled: true
gdsEnabled: true
mofedEnabled: false
sharedDevicesAllocationPolicy: distinct
preStartCheck: true
expectedGPUs: 8
includeDevices: [0, "model:*H100*"]
excludeDevices: ["0000:3b:00.0"]
claims: {ignore: [monitoring/*, "*/dcgm-*/gpu.nvidia.com"], reserveDevices: true}
imex: {channelIDs: [0], required: true}
mps: {root: /run/nvidia/mps}
cdi: {nvidiaHookPath: /usr/bin/nvidia-cdi-hook, featureFlags: disable-nvsandboxutils, disableHooks: all, annotationPrefix: cdi.example.com/}
health: {disable: [43, "109"], enable: [31], unhealthyAfter: 1m30s, driverRestartAfter: 5m, notReadyAfter: 10m}
devicePlugin: {takeOver: true}
incidents: {maxAge: 240h, maxCount: 500}
allocations: {maxAge: 2h}
metrics:
  port: 9410
  set: minimal
  include: [nvidia_gpu_*, podgauge_*]
  exclude: [nvidia_gpu_bar1_*]
  podLabels: allocation
  podUID: true
  labelsAllowlist: [app, team.example.com/*]
  nvlinkLinks: true
  dcgm: true
  seriesLimit: 5000
log: {level: debug, format: json}
webConfig: {content: {basic_auth_users: {prometheus: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}}
podMonitor:
  enabled: true
  basicAuth: {username: {name: scrape, key: user}, password: {name: scrape, key: password}}
  metricRelabelings: [{sourceLabels: [__name__], regex: nvidia_gpu_clock.*, action: drop}]
networkPolicy: {enabled: true}
openshift: {scc: true}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}]}]}}}
podSecurityContext: {seLinuxOptions: {type: spc_t}}
extraArgs: [--web.enable-pprof]
extraEnv: [{name: GOGC, value: "50"}]
extraVolumes: [{name: more, emptyDir: {}}]
extraVolumeMounts: [{name: more, mountPath: /more}]
`},
}

const testDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// allCases returns all cases, including the example files.
func allCases(t *testing.T) []chartCase {
	t.Helper()
	paths, err := filepath.Glob(chartDir + "/examples/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples (%v)", err)
	}
	found := slices.Clone(chartCases)
	for _, path := range paths {
		found = append(found, chartCase{strings.TrimSuffix(filepath.Base(path), ".yaml"), read(t, path)})
	}
	return found
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
		t.Run(c.name, func(t *testing.T) { compareGolden(t, path, joinObjects(abridge(mustRender(t, c.values)))) })
	}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
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
	compareGolden(t, root+"/deploy/podgauge.yaml", []byte(heading+kept.String()))
}

// TestNotes checks that the notes after the installation match the values.
func TestNotes(t *testing.T) {
	_, notes, err := renderChart(`namespaceOverride: gpus`)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"kubectl -n gpus rollout status daemonset/podgauge", "nvidia.com/gpu.present=true", "podMonitor.enabled=true", "Pod Security level: privileged", "label namespace gpus pod-security", "all namespaces and addresses may connect to port 9400"} {
		if !strings.Contains(notes, text) {
			t.Errorf("the notes lack %q:\n%s", text, notes)
		}
	}
	_, notes, err = renderChart(`{simulate: node, prometheusAnnotations: {enabled: true}, namespace: {create: true}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"gpu.present", "podMonitor", "pod-security.", "RuntimeClass", "honorLabels"} {
		if strings.Contains(notes, text) {
			t.Errorf("the notes of a simulated node contain %q:\n%s", text, notes)
		}
	}
}

// TestNotesOfNetwork checks that the notes describe the network access to podgauge, and the effects of honorLabels and injection.
func TestNotesOfNetwork(t *testing.T) {
	for values, want := range map[string]string{
		`networkPolicy: {from: [{podSelector: {}}]}`: "NetworkPolicy: the peers in networkPolicy.from may connect to port 9400. Other inbound and all outbound connections are denied.",
		`kubernetes: {events: true}`:                 "denied, except outbound to ports 443, 6443 of all addresses",
		`{kubernetes: {events: true}, networkPolicy: {apiServer: {cidrs: [10.0.0.1/32], ports: [16443]}}}`: "denied, except outbound to ports 16443 of 10.0.0.1/32.",
		``: "Anyone may read",
		`networkPolicy: {fromNamespaces: {a: b}}`:                      "NetworkPolicy: pods of namespaces with the label a=b may connect to port 9400.",
		`{web: {metricsOnly: true}}`:                                   "all namespaces and addresses may connect to port 9400, which serves only metrics.",
		`networkPolicy: {egress: [{}]}`:                                "denied, except those of networkPolicy.ingress and networkPolicy.egress.",
		`{hostNetwork: true, metrics: {port: 9410}}`:                   "port 9410 of each node is open to all clients",
		`serviceMonitor: {enabled: true, honorLabels: false}`:          "exported_pod",
		`{driver: {injection: host}, networkPolicy: {enabled: false}}`: "The container is privileged, too",
	} {
		_, notes, err := renderChart(values)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(notes, want) {
			t.Errorf("%s: the notes lack %q:\n%s", values, want, notes)
		}
	}
}

// TestNotesOfSet checks that the notes warn about a metric set that is too small for the installed alerts or dashboards.
func TestNotesOfSet(t *testing.T) {
	for values, want := range map[string]bool{
		`{metrics: {set: minimal}, prometheusRule: {enabled: true}}`: true,
		`{metrics: {set: none}, dashboards: {enabled: true}}`:        true,
		`{metrics: {set: minimal}}`:                                  false,
		`{metrics: {set: full}, prometheusRule: {enabled: true}}`:    false,
		`{prometheusRule: {enabled: true}}`:                          false,
	} {
		_, notes, err := renderChart(values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(notes, "metrics.set=") != want {
			t.Errorf("%s: want a note about the set: %t; the notes are\n%s", values, want, notes)
		}
	}
}

// TestNotesOfDecision checks that the notes ask who may read until a value has decided.
func TestNotesOfDecision(t *testing.T) {
	for values, want := range map[string]bool{
		``: true, `web: {metricsOnly: true}`: false, `networkPolicy: {fromNamespaces: {a: b}}`: false, `networkPolicy: {from: [{podSelector: {}}]}`: false,
		`webConfig: {existingSecret: a}`: false, `networkPolicy: {enabled: false}`: true, `hostNetwork: true`: true,
	} {
		_, notes, err := renderChart(values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(notes, "Anyone may read") != want {
			t.Errorf("%s: want the question: %t; the notes are\n%s", values, want, notes)
		}
	}
}
