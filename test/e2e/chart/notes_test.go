package chart

import (
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestNotes checks what the notes after the installation say and omit for values.
func TestNotes(t *testing.T) {
	const open, status, doctor, metricSet = "Anyone may read", "-- podgauge status\n", "-- podgauge doctor\n", "metrics.set="
	for values, notes := range map[string]struct{ has, lacks []string }{
		``: {has: []string{
			open, status, doctor, "nvidia.com/gpu.present=true", "podMonitor.enabled=true", "Pod Security level: privileged",
			"all namespaces and addresses may connect to port 9400",
		}},
		`namespaceOverride: gpus`: {has: []string{"kubectl -n gpus rollout status daemonset/podgauge", "label namespace gpus pod-security"}},
		`{simulate: node, prometheusAnnotations: {enabled: true}, namespace: {create: true}}`: {lacks: []string{
			"gpu.present", "podMonitor", "pod-security.", "RuntimeClass", "honorLabels", doctor,
		}},
		`simulate: hardware`: {has: []string{doctor}},
		// The network, and who may read.
		`networkPolicy: {enabled: false}`: {has: []string{open}},
		`hostNetwork: true`:               {has: []string{open}},
		`networkPolicy: {from: [{podSelector: {}}]}`: {
			[]string{"NetworkPolicy: the peers in networkPolicy.from may connect to port 9400. Other inbound and all outbound connections are denied."},
			[]string{open},
		},
		`networkPolicy: {fromNamespaces: {a: b}}`: {
			[]string{"NetworkPolicy: pods of namespaces with the label a=b may connect to port 9400."}, []string{open},
		},
		`web: {metricsOnly: true}`: {
			[]string{"all namespaces and addresses may connect to port 9400, which serves only metrics."}, []string{open},
		},
		`networkPolicy: {egress: [{}]}`:                                 {has: []string{"denied, except those of networkPolicy.ingress and networkPolicy.egress."}},
		`kubernetes: {pods: true}`:                                      {[]string{"denied, except outbound to ports 443, 6443 of all addresses"}, []string{"deployment/", "Only RBAC"}},
		`kubernetes: {events: true}`:                                    {[]string{"outbound connections are denied.", "rollout status deployment/podgauge-kube"}, []string{"Only RBAC"}},
		`kubernetes: {events: true, admissionPolicy: {enabled: false}}`: {has: []string{"Only RBAC limits it"}},
		`{kubernetes: {pods: true}, networkPolicy: {apiServer: {cidrs: [10.0.0.1/32], ports: [16443]}}}`: {
			has: []string{"denied, except outbound to ports 16443 of 10.0.0.1/32."},
		},
		`{hostNetwork: true, metrics: {port: 9410}}`:                   {has: []string{"port 9410 of each node is open to all clients", status}},
		`serviceMonitor: {enabled: true, honorLabels: false}`:          {has: []string{"exported_pod"}},
		`{driver: {injection: host}, networkPolicy: {enabled: false}}`: {has: []string{"The container is privileged, too"}},
		// A metric set that is too small for the installed alerts or dashboards.
		`{metrics: {set: minimal}, prometheusRule: {enabled: true}}`: {has: []string{metricSet}},
		`{metrics: {set: none}, dashboards: {enabled: true}}`:        {has: []string{metricSet}},
		`{metrics: {set: minimal}}`:                                  {lacks: []string{metricSet}},
		`{metrics: {set: full}, prometheusRule: {enabled: true}}`:    {lacks: []string{metricSet}},
		`{prometheusRule: {enabled: true}}`:                          {lacks: []string{metricSet}},
		// Without the state folder there is no socket, and the network requires a password, or lacks the API.
		`webConfig: {existingSecret: a}`:                                         {[]string{status}, []string{open}},
		`webConfig: {content: {tls_server_config: {cert_file: a, key_file: b}}}`: {has: []string{status}},
		`{state: {enabled: false}, web: {metricsOnly: false}}`:                   {has: []string{status}},
		`{state: {enabled: false}, webConfig: {existingSecret: a}}`:              {lacks: []string{"podgauge status"}},
		`{state: {enabled: false}, web: {metricsOnly: true}}`:                    {lacks: []string{"podgauge status"}},
	} {
		_, text, err := renderChart(values)
		require.NoError(t, err)
		for _, want := range notes.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the notes lack %q:\n%s", values, want, text)
			}
		}
		for _, unwanted := range notes.lacks {
			if strings.Contains(text, unwanted) {
				t.Errorf("%s: the notes contain %q:\n%s", values, unwanted, text)
			}
		}
	}
}
