package chart

import (
	"strings"
	"testing"
)

// TestRejectedValues checks the errors for invalid values.
func TestRejectedValues(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		// By the schema.
		{`migStrategie: mixed`, "additional properties 'migStrategie' not allowed"},
		{`migStrategy: both`, "value must be one of 'none', 'single', 'mixed', <nil>"},
		{`migStrategy: true`, "/migStrategy"},
		{`mig: {monitor: yes please}`, "/mig/monitor"},
		{`failOnInitError: "no"`, "/failOnInitError"},
		{`deviceListStrategy: envvar cdi-cri`, "/deviceListStrategy"},
		{`deviceIDStrategy: name`, "/deviceIDStrategy"},
		{`driver: {injection: operator}`, "/driver/injection"},
		{`nvidiaDriverRoot: run/nvidia/driver`, "/nvidiaDriverRoot"},
		{`kubelet: {dir: /var/lib/kubelet/}`, "/kubelet/dir"},
		{`kubelet: {rootDir: /var/lib/kubelet}`, "additional properties 'rootDir' not allowed"},
		{`metrics: {port: 0}`, "/metrics/port"},
		{`metrics: {port: "9400"}`, "/metrics/port"},
		{`metrics: {set: most}`, "/metrics/set"},
		{`metrics: {podLabels: none}`, "/metrics/podLabels"},
		{`metrics: {include: nvidia_gpu_*}`, "/metrics/include"},
		{`metrics: {seriesLimit: 0}`, "/metrics/seriesLimit"},
		{`kubernetes: {events: yes please}`, "/kubernetes/events"},
		{`kubernetes: {configLabel: "a label"}`, "/kubernetes/configLabel"},
		{`kubernetes: {configLabel: a}`, "kubernetes.configLabel: requires config.map or config.name"},
		{`kubernetes: {condition: {preset: gke}}`, "/kubernetes/condition/preset"},
		{`kubernetes: {condition: {healthyStatus: true}}`, "/kubernetes/condition/healthyStatus"},
		{`kubernetes: {condition: {reasons: {good: A}}}`, "invalid propertyName 'good'"},
		{`kubernetes: {deviceTaintEffects: {hardware: Evict}}`, "/kubernetes/deviceTaintEffects/hardware"},
		{`kubernetes: {replicas: -1}`, "/kubernetes/replicas"},
		{`kubernetes: {nodes: {scheme: tcp}}`, "/kubernetes/nodes/scheme"},
		{`log: {level: verbose}`, "/log/level"},
		{`health: {disable: [soon]}`, "/health/disable/0"},
		{`health: {unhealthyAfter: 30}`, "/health/unhealthyAfter"},
		{`incidents: {maxAge: 30d}`, "/incidents/maxAge"},
		{`incidents: {maxCount: 10001}`, "/incidents/maxCount"},
		{`imex: {channelIDs: [1]}`, "/imex/channelIDs/0"},
		{`image: {tag: "a tag"}`, "/image/tag"},
		{`image: {digest: sha256:abc}`, "/image/digest"},
		{`image: {pullPolicy: Sometimes}`, "/image/pullPolicy"},
		{`image: podgauge`, "/image"},
		{`imagePullSecrets: [pull]`, "/imagePullSecrets/0"},
		{`config: {map: {default: {version: v1}}}`, "/config/map/default"},
		{`config: {map: {..data: "version: v1"}}`, "..data"},
		{`config: {fallbackStrategies: [newest]}`, "/config/fallbackStrategies/0"},
		{`webConfig: {content: {tls_config: {}}}`, "additional properties 'tls_config' not allowed"},
		{`podMonitor: {interval: often}`, "/podMonitor/interval"},
		{`podMonitor: {honourLabels: false}`, "additional properties 'honourLabels' not allowed"},
		{`podMonitor: {sampleLimit: 0}`, "/podMonitor/sampleLimit"},
		{`image: {registry: "https://a/"}`, "/image/registry"},
		{`global: {imageRegistry: "a b"}`, "/global/imageRegistry"},
		{`networkPolicy: {apiServer: {cidrs: [api.example.com]}}`, "/networkPolicy/apiServer/cidrs/0"},
		{`networkPolicy: {apiServer: {ports: []}}`, "/networkPolicy/apiServer/ports"},
		{`networkPolicy: {fromNamespaces: [monitoring]}`, "/networkPolicy/fromNamespaces"},
		{`web: {allowedHosts: ["https://a"]}`, "/web/allowedHosts/0"},
		{`hostNetwork: "yes"`, "/hostNetwork"},
		{`dnsPolicy: None`, "/dnsPolicy"},
		{`revisionHistoryLimit: -1`, "/revisionHistoryLimit"},
		{`extraContainers: [{image: a}]`, "/extraContainers/0"},
		{`initContainers: {name: a}`, "/initContainers"},
		{`extraObjects: [1]`, "/extraObjects/0"},
		{`podMonitor: {scheme: tcp}`, "/podMonitor/scheme"},
		{`tolerations: [{key: a, operator: Is}]`, "/tolerations/0/operator"},
		{`updateStrategy: {type: Recreate}`, "/updateStrategy/type"},
		{`updateStrategy: {rollingUpdate: {maxUnavailable: all}}`, "/updateStrategy/rollingUpdate/maxUnavailable"},
		{`terminationGracePeriodSeconds: 0`, "/terminationGracePeriodSeconds"},
		{`resources: {limit: {memory: 96Mi}}`, "additional properties 'limit' not allowed"},
		{`extraArgs: [simulate]`, "/extraArgs/0"},
		{`simulate: gpu`, "/simulate"},
		{`namespaceOverride: Gpu Team`, "/namespaceOverride"},
		{`commonLabels: {tier: 1}`, "/commonLabels/tier"},
		{`prometheusRule: {alerts: {Watchdog: {}}}`, "invalid propertyName 'Watchdog'"},
		{`prometheusRule: {alerts: {PodgaugeDown: {threshold: high}}}`, "/prometheusRule/alerts/PodgaugeDown/threshold"},
		{`prometheusRule: {alerts: {PodgaugeDown: {expr: up}}}`, "additional properties 'expr' not allowed"},

		// By the chart.
		{`config: {name: a, map: {b: "version: v1"}}`, "config.name, config.map: set only one of them"},
		{"config: {map: {a: \"version: v1\\nflags:\\n  migStrategie: mixed\\n\"}}", "config.map.a:3: flags.migStrategie: unknown key; valid keys are deviceDiscoveryStrategy, "},
		{"config: {map: {a: \"version: v1\\nflags:\\n  migStrategy: all\\n\"}}", `config.map.a:3: flags.migStrategy: "all": expected one of none, single, mixed`},
		{"config: {map: {a: \"version: v1\\nflags:\\n  plugin:\\n    deviceListStrategy:\\n    - envvar\\n    - cdi\\n\"}}", `config.map.a:6: flags.plugin.deviceListStrategy[1]: "cdi": expected one of envvar, `},
		{"config: {map: {a: \"sharing:\\n  timeSlicing:\\n    resources:\\n    - name: gpu\\n      replicas: 2\\n    - name: gpu\\n      replicas: 1\\n\"}}", "config.map.a:7: sharing.timeSlicing.resources[1].replicas: 1: expected a whole number from 2"},
		{"config: {map: {a: \"podgauge:\\n  xids:\\n    94: fatal\\n\"}}", `config.map.a:3: podgauge.xids.94: "fatal": expected one of ignore, warn, unhealthy`},
		{"config: {map: {a: \"version: v1\\n---\\nversion: v1\\n\"}}", "config.map.a: expected one document"},
		{"config: {map: {a: \"version: v1\\npodgauge:\\n  select:\\n    include: [gpu0]\\n\"}}", `config.map.a:4: podgauge.select.include[0]: "gpu0": expected an index (0), a MIG index`},
		{`config: {default: a}`, "config.default: requires config.map or config.name"},
		{`config: {default: c, map: {b: "version: v1", a: "version: v1"}}`, "config.default: config.map has no c; valid names are a, b"},
		{`config: {map: {b: "version: v1", a: "version: v1"}}`, "config.default: expected one of a, b"},
		{`config: {map: {a: "version: v1"}, fallbackStrategies: [named]}`, "config.default: expected one of a"},
		{`config: {name: a, fallbackStrategies: [named, empty]}`, "config.fallbackStrategies: fixed to [named, single] with config.name"},
		{`config: {map: {a: "version: [v1"}}`, "config.map.a: error converting YAML"},
		{`image: {repository: nvcr.io/nvidia/k8s-device-plugin, tag: v0.19.3}`, "image.repository: nvcr.io/nvidia/k8s-device-plugin is not an image of podgauge"},
		{`image: {repository: registry.example.com/mirror/dcgm-exporter}`, "omit image.repository and image.tag"},
		{`image: {registry: nvcr.io, repository: nvidia/gpu-operator}`, "not an image of podgauge"},
		{`{hostNetwork: true, dnsPolicy: ClusterFirst}`, "dnsPolicy: expected ClusterFirstWithHostNet or Default"},
		{`extraContainers: [{name: podgauge}]`, "podgauge is the name of podgauge's own container"},
		{`{updateStrategy: {rollingUpdate: {maxSurge: 1}}, state: {enabled: false}}`, "maxSurge: requires state.enabled"},
		{`{updateStrategy: {rollingUpdate: {maxSurge: 10%}}, hostNetwork: true}`, "maxSurge: not with hostNetwork"},
		{`webConfig: {existingSecret: a, content: {basic_auth_users: {a: b}}}`, "webConfig.content, webConfig.existingSecret: set only one"},
		{`webConfig: {tlsSecret: a}`, "webConfig.tlsSecret: requires"},
		{`webConfig: {content: {tls_server_config: {cert_file: a}}}
podMonitor: {enabled: true}`, "podMonitor.scheme: expected https"},
		{`webConfig: {content: {tls_server_config: {cert_file: a}}}
serviceMonitor: {enabled: true}`, "serviceMonitor.scheme: expected https"},
		{`metrics: {port: 9401}`, "probes.port: must differ from metrics.port"},
		{`{podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}`, "otherwise Prometheus scrapes each pod twice"},
		{`{podMonitor: {enabled: true}, prometheusAnnotations: {enabled: true}}`, "Prometheus would scrape each pod twice"},
		{`{serviceMonitor: {enabled: true}, service: {enabled: false}}`, "serviceMonitor.enabled: requires service.enabled"},
		{`{podsAPI: {enabled: false}, metrics: {podUID: true}}`, "require podsAPI.enabled or kubernetes.pods"},
		{`{podsAPI: {enabled: false}, metrics: {labelsAllowlist: [app]}}`, "require podsAPI.enabled"},
		{`{kubernetes: {deviceTaints: true}, web: {metricsOnly: true}}`, "web.metricsOnly: not with kubernetes.events, kubernetes.nodeCondition or kubernetes.deviceTaints"},
		{`{kubernetes: {events: true}, webConfig: {content: {tls_server_config: {cert_file: a}}}}`, "kubernetes.nodes.scheme: expected https"},
		{`{kubernetes: {events: true}, webConfig: {content: {basic_auth_users: {a: b}}}}`, "kubernetes.nodes.username: expected a user of webConfig.content"},
		{`kubernetes: {events: true, nodes: {username: a}}`, "kubernetes.nodes.passwordSecret: set both or none"},
		{`kubernetes: {events: true, nodes: {caSecret: a}}`, "require kubernetes.nodes.scheme=https"},
		{`kubernetes: {events: true, serviceAccountName: podgauge}`, "kubernetes.serviceAccountName: must differ from serviceAccount.name"},
		{`kubernetes: {condition: {preset: aks, type: GPU}}`, "kubernetes.condition: the preset aks has several conditions"},
		{`extraContainers: [{name: podgauge-kube}]`, "podgauge-kube is the name of podgauge's own container"},
		{`{simulate: node, kernelLog: {enabled: true}}`, "kernelLog.enabled: not with simulate"},
		{`prometheusRule: {enabled: true, alerts: {PodgaugeNoSuchAlert: {}}}`, "unknown alert PodgaugeNoSuchAlert"},
		{`prometheusRule: {enabled: true, alerts: {PodgaugeDown: {threshold: 1}}}`, "prometheusRule.alerts.PodgaugeDown.threshold: the alert has no threshold"},

		// Values of NVIDIA's chart that this chart lacks.
		{`gfd: {enabled: true}`, "keep NVIDIA's chart for that"},
		{`nfd: {}`, "node-feature-discovery has a chart of its own"},
		{`allowDefaultNamespace: true`, "podgauge runs in any namespace"},
		{`selectorLabelsOverride: {app: gpu}`, "the selector is"},
		{`componentSelectorLabels: {enabled: true}`, "the chart has one DaemonSet"},
		{`legacyDaemonsetAPI: true`, "only have apps/v1"},
		{`devicePlugin: {enableHostNetwork: true}`, "use hostNetwork"},
		{`devicePlugin: {containers: {main: {env: []}}}`, "extraEnv"},
		{`mps: {enableHostPID: true}`, "mps.enableHostPID"},
		{`deviceDiscoveryStrategy: tegra`, "Tegra has no NVML"},
	} {
		if _, _, err := renderChart(c.values); err == nil {
			t.Errorf("%s: got no error, want %s", c.values, c.want)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error\n%v\nwant %s", c.values, err, c.want)
		}
	}
}

// TestSurgeOfOlderKubernetes checks that a surge requires a cluster whose kubelets may be 1.37.
func TestSurgeOfOlderKubernetes(t *testing.T) {
	for version, want := range map[string]string{"v1.36.3": "kubelets up to 1.36 drop all GPUs", "v1.37.0-gke.100": ""} {
		_, _, err := renderChartFor(version, `updateStrategy: {rollingUpdate: {maxSurge: 1}}`)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want error %q", version, err, want)
		}
	}
	if _, _, err := renderChartFor(olderVersion); err != nil {
		t.Errorf("without surge: got %v", err)
	}
}

// TestNvidiaValues checks that the chart accepts values of NVIDIA's chart with the same meaning.
func TestNvidiaValues(t *testing.T) {
	objects := mustRender(t, `
config: {name: "", map: {default: "{version: v1, flags: {migStrategy: none}}", mig-mixed: "{version: v1, flags: {migStrategy: mixed}}"}, default: "", fallbackStrategies: [named, single]}
compatWithCPUManager: null
migStrategy: null
failOnInitError: true
deviceListStrategy: envvar
deviceIDStrategy: uuid
nvidiaDriverRoot: /run/nvidia/driver
gdrcopyEnabled: null
gdsEnabled: false
mofedEnabled: null
deviceDiscoveryStrategy: auto
nameOverride: ""
fullnameOverride: ""
namespaceOverride: ""
imagePullSecrets: []
updateStrategy: {type: RollingUpdate}
podAnnotations: {}
podSecurityContext: {}
securityContext: {}
resources: {}
nodeSelector: {}
tolerations: [{key: CriticalAddonsOnly, operator: Exists}, {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
priorityClassName: system-node-critical
runtimeClassName: null
devicePlugin: {enabled: true}
mps: {root: /run/nvidia/mps}
cdi: {nvidiaHookPath: null, featureFlags: null}
`)
	if len(objects) == 0 {
		t.Error("got no objects")
	}
}
