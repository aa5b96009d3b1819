package chart

import (
	"slices"
	"testing"

	apps "k8s.io/api/apps/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// TestPodSecurityLevel checks with Kubernetes' evaluator how the pods of each case violate the level baseline. By default, only hostPath
// volumes do, as docs/how-to/install.md and docs/explanation/security.md state; caseRequirements has the other violations.
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
		want, requirements := []string{"hostPath volumes"}, caseRequirements[c.name]
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
			t.Errorf("%s: violations of baseline: got %q, want %q", c.name, got, want)
		}
	}
}

// TestNetworkPolicy checks that each case only allows inbound connections to the metrics' port, unless the values differ.
func TestNetworkPolicy(t *testing.T) {
	for _, c := range allCases(t) {
		policies := decodeAll[networking.NetworkPolicy](t, mustRender(t, c.values))
		if none := c.name == "no-network-policy" || caseRequirements[c.name].hostNetwork; none != (len(policies) == 0) {
			t.Errorf("%s: got %d policies", c.name, len(policies))
			continue
		}
		for _, p := range policies {
			extra := map[bool]int{true: 1}[c.name == "extras"]
			first := p.Spec.Ingress[0]
			if len(p.Spec.Ingress) != 1+extra || len(first.Ports) != 1 || first.Ports[0].Port.String() != "metrics" || (len(first.From) > 0) != (c.name == "network-policy" || c.name == "closed") {
				t.Errorf("%s: inbound connections: got %+v", c.name, p.Spec.Ingress)
			}
			if c.name == "kubernetes" { // the API server
				extra++
			}
			if len(p.Spec.Egress) != extra || !slices.Equal(p.Spec.PolicyTypes, []networking.PolicyType{networking.PolicyTypeIngress, networking.PolicyTypeEgress}) {
				t.Errorf("%s: outbound connections: got %+v, policy types %v", c.name, p.Spec.Egress, p.Spec.PolicyTypes)
			}
		}
	}
}

// TestAPIServerEgress checks the addresses and ports of the API server that podgauge may connect to.
func TestAPIServerEgress(t *testing.T) {
	for values, want := range map[string]string{
		``:                           `[]`,
		`kubernetes: {events: true}`: `[{"ports":[{"protocol":"TCP","port":443},{"protocol":"TCP","port":6443}]}]`,
		`{kubernetes: {pods: true}, networkPolicy: {apiServer: {cidrs: [10.0.0.1/32], ports: [8443]}}}`: `[{"ports":[{"protocol":"TCP","port":8443}],"to":[{"ipBlock":{"cidr":"10.0.0.1/32"}}]}]`,
		`networkPolicy: {apiServer: {cidrs: [10.0.0.1/32]}}`:                                            `[]`,
	} {
		policy := decodeAll[networking.NetworkPolicy](t, mustRender(t, values))[0]
		if got := string(mustJSON(t, policy.Spec.Egress)); got != want {
			t.Errorf("%s: got %s, want %s", values, got, want)
		}
	}
}
