package chart

import (
	"slices"
	"testing"

	apps "k8s.io/api/apps/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// TestPodSecurityLevel asks Kubernetes' own evaluator what in the pods of each case violates the level baseline. By default that is
// hostPath volumes alone, as docs/how-to/install.md and docs/explanation/security.md state; caseRequirements has the rest.
func TestPodSecurityLevel(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range allCases(t) {
		pod := decodeAll[apps.DaemonSet](t, mustRender(t, c.values))[0].Spec.Template
		baseline := api.LevelVersion{Level: api.LevelBaseline, Version: api.LatestVersion()}
		got := []string{}
		for _, result := range evaluator.EvaluatePod(baseline, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				got = append(got, result.ForbiddenReason)
			}
		}
		want, needs := []string{"hostPath volumes"}, caseRequirements[c.name]
		if needs.hostPID || needs.hostNetwork {
			want = append(want, "host namespaces")
		}
		if needs.hostNetwork {
			want = append(want, "hostPort")
		}
		if needs.privileged {
			want = append(want, "privileged")
		}
		if len(needs.capabilities) > 0 {
			want = append(want, "non-default capabilities")
		}
		if pod.Spec.SecurityContext.SELinuxOptions != nil {
			want = append(want, "seLinuxOptions")
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: baseline forbids %q, want %q", c.name, got, want)
		}
	}
}

// TestNetworkPolicy checks that each case admits connections to the metrics' port and none out, unless the values are different.
func TestNetworkPolicy(t *testing.T) {
	for _, c := range allCases(t) {
		policies := decodeAll[networking.NetworkPolicy](t, mustRender(t, c.values))
		if none := c.name == "no-network-policy" || caseRequirements[c.name].hostNetwork; none != (len(policies) == 0) {
			t.Errorf("%s: %d policies", c.name, len(policies))
			continue
		}
		for _, p := range policies {
			extra := map[bool]int{true: 1}[c.name == "extras"]
			first := p.Spec.Ingress[0]
			if len(p.Spec.Ingress) != 1+extra || len(first.Ports) != 1 || first.Ports[0].Port.String() != "metrics" || (len(first.From) > 0) != (c.name == "network-policy") {
				t.Errorf("%s: connections in: %+v", c.name, p.Spec.Ingress)
			}
			if c.name == "kubernetes" { // the API server
				extra++
			}
			if len(p.Spec.Egress) != extra || !slices.Equal(p.Spec.PolicyTypes, []networking.PolicyType{networking.PolicyTypeIngress, networking.PolicyTypeEgress}) {
				t.Errorf("%s: connections out: %+v of %v", c.name, p.Spec.Egress, p.Spec.PolicyTypes)
			}
		}
	}
}
