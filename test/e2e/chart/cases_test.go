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
	{"measure-only", `{devicePlugin: {enabled: false}, podsAPI: {enabled: false}, state: {enabled: false}, retired: {enabled: false}}`},
	{"named-config", `config: {name: gpu-configs, default: shared}`},
	{"empty-config", `config: {map: {a: "version: v1", b: "version: v1"}, fallbackStrategies: [named, single, empty]}`},
	{"web-secret", `{webConfig: {existingSecret: podgauge-web, key: web-config.yml}, probes: {port: 9500}}`},
	{"service-monitor", `{serviceMonitor: {enabled: true, interval: 15s, scrapeTimeout: 10s}, prometheusRule: {enabled: true, recording: false, profiling: true, alerts: {PodgaugeIdleDeviceAllocated: {enabled: false}}}}`},
	{"annotations", `{prometheusAnnotations: {enabled: true}, service: {enabled: false}, podAnnotations: {example.com/team: gpu}}`},
	{"network-policy", `networkPolicy: {enabled: true, from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}`},
	{"kubernetes", `{podsAPI: {enabled: false}, metrics: {podUID: true}, kubernetes: {events: true, nodeCondition: true, deviceTaints: true, pods: true, configLabel: nvidia.com/device-plugin.config, adminClaims: true}, config: {map: {a: "version: v1", b: "version: v1"}, default: a}, networkPolicy: {enabled: true, apiServer: {cidrs: [10.0.0.1/32, "fd00::1/128"], ports: [16443]}}}`},
	{"kubernetes-events", `{kubernetes: {events: true, admissionPolicy: {enabled: false}}, prometheusAnnotations: {enabled: true}}`},
	{"kubernetes-controller", `
kubernetes:
  nodeCondition: true
  condition: {preset: eks, reasons: {unhealthy: GPUFault, ready: GPUsReady}}
  deviceTaints: true
  deviceTaintEffects: {hardware: NoSchedule, suspect: None}
  image: {repository: registry.example.com/kube, digest: "sha256:` + testDigest + `"}
  replicas: 2
  serviceAccountName: gpu-writer
  tolerations: [{operator: Exists}]
  affinity: {nodeAffinity: {}}
  nodes: {scheme: https, caSecret: podgauge-tls, serverName: podgauge, username: kube, passwordSecret: podgauge-kube}
hostNetwork: true
webConfig: {existingSecret: podgauge-web, key: web-config.yml}
jobs: {mappingDir: /run/jobs, label: slurm/job}
log: {level: debug, format: json}
podMonitor: {enabled: true, interval: 15s, labels: {release: a}}
networkPolicy: {fromNamespaces: {gpu-metrics: allowed}}
openshift: {scc: true}
revisionHistoryLimit: 2
imagePullSecrets: [{name: pull}]
commonLabels: {team: gpu}
`},
	{"kubernetes-sidecar", `
kubernetes: {pods: true, configLabel: a, adminClaims: true}
config: {name: gpu-configs}
openshift: {scc: true}
initContainers: [{name: wait, image: registry.example.com/wait}]
networkPolicy: {from: [{podSelector: {}}]}
`},
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
prometheusRule:
  enabled: true
  recording: false
  namespace: monitoring
  additionalLabels: {team: gpu}
  alertLabels: {team: gpu}
  runbookURL: https://wiki.example.com/runbooks/
  alerts:
    PodgaugeNearSlowdown:
      severity: page
      for: 1h
      keepFiringFor: 2h
      labels: {tier: one}
      annotations: {note: me, runbook_url: "https://wiki.example.com/gpu"}
      threshold: 4.5
    PodgaugeUnallocatedMemoryUsed: {threshold: 0}
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
	{"surge", `updateStrategy: {rollingUpdate: {maxSurge: 10%}}`},
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
retired: {configMap: out-of-service}
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
jobs: {mappingDir: /run/jobs, label: slurm/job}
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
		found = append(found, chartCase{strings.TrimSuffix(filepath.Base(path), ".yaml"), testfile.Read(t, path)})
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
