package chart

import (
	"slices"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// TestPodSecurityLevel checks with Kubernetes' evaluator how the pods of each case violate the level baseline. By default, only hostPath
// volumes do, as docs/how-to/install.md and docs/explanation/security.md state; caseRequirements has the other violations.
func TestPodSecurityLevel(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	eachPod(t, func(name string, pod core.PodTemplateSpec) {
		baseline := api.LevelVersion{Level: api.LevelBaseline, Version: api.LatestVersion()}
		got := []string{}
		for _, result := range evaluator.EvaluatePod(baseline, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				got = append(got, result.ForbiddenReason)
			}
		}
		want, requirements := []string{"hostPath volumes"}, caseRequirements[name]
		if requirements.hostPID || requirements.hostNetwork {
			want = append(want, "host namespaces")
		}
		if requirements.hostNetwork {
			want = append(want, "hostPort")
		}
		if requirements.privileged {
			want = append(want, "privileged")
		}
		if len(requirements.capabilities) > 0 {
			want = append(want, "non-default capabilities")
		}
		if pod.Spec.SecurityContext.SELinuxOptions != nil {
			want = append(want, "seLinuxOptions")
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: violations of baseline: got %q, want %q", name, got, want)
		}
	})
}

// TestControllerSecurityLevel checks that the controller's pods have the level restricted, also with the user id of OpenShift.
func TestControllerSecurityLevel(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	for _, values := range []string{`kubernetes: {events: true}`, `{kubernetes: {events: true}, openshift: {scc: true}}`} {
		pod := decodeAll[apps.Deployment](t, mustRender(t, values))[0].Spec.Template
		restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
		for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				t.Errorf("%s: %s: %s", values, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
	}
}

// TestControllerNetwork checks that the controller connects to the API server and to podgauge, and that podgauge accepts it even if the
// values name other peers only.
func TestControllerNetwork(t *testing.T) {
	const from = `networkPolicy: {fromNamespaces: {a: b}, apiServer: {cidrs: [10.0.0.1/32], ports: [8443]}}`
	policies := decodeAll[networking.NetworkPolicy](t, mustRender(t, `kubernetes: {events: true}`, from))
	if len(policies) != 2 || policies[0].Name != "podgauge" || policies[1].Name != "podgauge-kube" {
		t.Fatalf("got %d policies, want podgauge and podgauge-kube", len(policies))
	}
	const wantPeers = `[{"namespaceSelector":{"matchLabels":{"a":"b"}}},{"podSelector":{"matchLabels":{"app.kubernetes.io/instance":"podgauge","app.kubernetes.io/name":"podgauge-kube"}}}]`
	if got := string(mustJSON(t, policies[0].Spec.Ingress[0].From)); got != wantPeers {
		t.Errorf("peers of podgauge: got %s, want %s", got, wantPeers)
	}
	const wantEgress = `[{"ports":[{"protocol":"TCP","port":8443}],"to":[{"ipBlock":{"cidr":"10.0.0.1/32"}}]},` +
		`{"ports":[{"protocol":"TCP","port":9400}],"to":[{"podSelector":{"matchLabels":{"app.kubernetes.io/instance":"podgauge","app.kubernetes.io/name":"podgauge"}}}]}]`
	if got := string(mustJSON(t, policies[1].Spec.Egress)); got != wantEgress {
		t.Errorf("egress of the controller: got %s, want %s", got, wantEgress)
	}
}

// TestAPIServerEgress checks the addresses and ports of the API server that podgauge may connect to.
func TestAPIServerEgress(t *testing.T) {
	for values, want := range map[string]string{
		``:                                `[]`,
		`kubernetes: {events: true}`:      `[]`, // the controller has a policy of its own
		`kubernetes: {adminClaims: true}`: `[{"ports":[{"protocol":"TCP","port":443},{"protocol":"TCP","port":6443}]}]`,
		`{kubernetes: {pods: true}, networkPolicy: {apiServer: {cidrs: [10.0.0.1/32], ports: [8443]}}}`: `[{"ports":[{"protocol":"TCP","port":8443}],"to":[{"ipBlock":{"cidr":"10.0.0.1/32"}}]}]`,
		`networkPolicy: {apiServer: {cidrs: [10.0.0.1/32]}}`:                                            `[]`,
	} {
		policy := decodeAll[networking.NetworkPolicy](t, mustRender(t, values))[0]
		if got := string(mustJSON(t, policy.Spec.Egress)); got != want {
			t.Errorf("%s: got %s, want %s", values, got, want)
		}
	}
}
