package chart

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

const (
	podgaugeEvent = `{metadata: {name: a}, source: {component: podgauge}, involvedObject: {kind: Pod}, count: 1}`
	kubeletEvent  = `{metadata: {name: a}, source: {component: kubelet}, involvedObject: {kind: Pod}, count: 1}`
	nodeStatus    = `{metadata: {name: a, labels: {a: b}}, status: {capacity: {cpu: "1"}, conditions: [{type: Ready, status: "True"}, {type: GPUUnhealthy, status: "False"}]}}`
	ownLabels     = `{name: a, labels: {app.kubernetes.io/managed-by: podgauge-kube}, annotations: {podgauge.io/node: b}}`
	ownRule       = `{metadata: ` + ownLabels + `, spec: {deviceSelector: {driver: c, pool: b/d, device: e}, taint: {key: podgauge.io/unhealthy}}}`
	otherRule     = `{metadata: {name: a, labels: {app.kubernetes.io/managed-by: drain}}, spec: {taint: {key: a}}}`
)

// admissionCases are requests of the controller. An empty object is absent. The test of the cluster sends such requests to an API server.
var admissionCases = []struct {
	policy, old, object string
	want                string // part of the message; empty: accepted
}{
	{"events", "", podgaugeEvent, ""},
	{"events", podgaugeEvent, podgaugeEvent, ""},
	{"events", "", kubeletEvent, "only events of the component podgauge"},
	{"events", kubeletEvent, podgaugeEvent, "only events of the component podgauge"},
	{"events", podgaugeEvent, kubeletEvent, "only events of the component podgauge"},
	{"events", "", `{metadata: {name: a}, involvedObject: {kind: Node}}`, "only events of the component podgauge"},
	{"events", "", strings.Replace(podgaugeEvent, "count", "reportingComponent: kubelet, count", 1), "only events of the component podgauge"},
	{"events", "", strings.Replace(podgaugeEvent, "count", "reportingComponent: podgauge, count", 1), ""},
	{"events", "", strings.Replace(podgaugeEvent, "Pod", "Node", 1), ""},
	{"events", "", strings.Replace(podgaugeEvent, "Pod", "Secret", 1), "only events of pods and nodes"},

	{"nodes", nodeStatus, nodeStatus, ""},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `"False"`, `"True", reason: A`, 1), ""},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `, {type: GPUUnhealthy, status: "False"}`, "", 1), ""},
	{"nodes", `{metadata: {name: a}, status: {}}`, `{metadata: {name: a}, status: {conditions: [{type: GPUUnhealthy}]}}`, ""},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `"True"`, `"False"`, 1), "only conditions of the types GPUUnhealthy"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `{type: Ready, status: "True"}, `, "", 1), "only conditions of the types GPUUnhealthy"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `conditions: [`, `conditions: [{type: DiskPressure}, `, 1), "only conditions of the types GPUUnhealthy"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `"1"`, `"2"`, 1), "no other field of the status"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, `capacity: {cpu: "1"}, `, "", 1), "no other field of the status"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, "capacity:", `allocatable: {cpu: "1"}, capacity:`, 1), "no other field of the status"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, "a: b", "a: c", 1), "no labels, annotations, finalizers or owners"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, "labels:", "annotations: {a: b}, labels:", 1), "no labels, annotations, finalizers or owners"},
	{"nodes", nodeStatus, strings.Replace(nodeStatus, ", labels: {a: b}", "", 1), "no labels, annotations, finalizers or owners"},

	{"devicetaintrules", "", ownRule, ""},
	{"devicetaintrules", ownRule, ownRule, ""},
	{"devicetaintrules", ownRule, "", ""},
	{"devicetaintrules", "", ruleOf(`{deviceSelector: {driver: c, pool: b, device: e}, taint: {key: podgauge.io/suspect}}`), ""},
	{"devicetaintrules", "", ruleOf(`{deviceSelector: {driver: c, pool: b}, taint: {key: podgauge.io/suspect}}`), "only rules of a single device"},
	{"devicetaintrules", "", ruleOf(`{taint: {key: podgauge.io/suspect}}`), "only rules of a single device"},
	{"devicetaintrules", ownRule, ruleOf(`{deviceSelector: {driver: c, pool: bb, device: e}, taint: {key: podgauge.io/suspect}}`), "in a pool of its node"},
	{"devicetaintrules", ownRule, ruleOf(`{deviceSelector: {driver: c, pool: b, device: e}, taint: {key: example.com/a}}`), "only podgauge's taints"},
	{"devicetaintrules", "", `{metadata: {name: a}, spec: {taint: {key: a}}}`, "only rules with the label"},
	{"devicetaintrules", "", otherRule, "only rules with the label"},
	{"devicetaintrules", otherRule, ownRule, "only rules with the label"},
	{"devicetaintrules", ownRule, otherRule, "only rules with the label"},
	{"devicetaintrules", otherRule, "", "only rules with the label"},
	{"devicetaintrules", `{metadata: {name: a}}`, "", "only rules with the label"},
}

// ruleOf returns a rule of podgauge-kube for node b.
func ruleOf(spec string) string { return `{metadata: ` + ownLabels + `, spec: ` + spec + `}` }

// TestAdmissionPolicies evaluates the expressions of the policies.
func TestAdmissionPolicies(t *testing.T) {
	policies := map[string]*admission.ValidatingAdmissionPolicy{}
	for _, p := range decodeAll[admission.ValidatingAdmissionPolicy](t, mustRender(t, allWriters)) {
		policies[strings.TrimPrefix(p.Name, "podgauge-podgauge-kube-")] = p
	}
	for _, c := range admissionCases {
		p := policies[c.policy]
		if p == nil {
			t.Fatalf("no policy %s in %v", c.policy, policies)
		}
		request := admissionRequest(t, c.old, c.object)
		refused := ""
		for _, v := range p.Spec.Validations {
			if !evaluate(t, v.Expression, request) {
				refused += v.Message + "\n"
			}
		}
		if (refused == "") != (c.want == "") || !strings.Contains(refused, c.want) {
			t.Errorf("%s: %s → %s: got message %q, want %q", c.policy, c.old, c.object, refused, c.want)
		}
	}
}

const allWriters = `kubernetes: {events: true, nodeCondition: true, deviceTaints: true}`

// TestAdmissionPolicyScope checks that each policy denies, and applies to the controller's account only.
func TestAdmissionPolicyScope(t *testing.T) {
	documents := mustRender(t, allWriters)
	bound := map[string]bool{}
	for _, b := range decodeAll[admission.ValidatingAdmissionPolicyBinding](t, documents) {
		bound[b.Spec.PolicyName] = fmt.Sprint(b.Spec.ValidationActions) == "[Deny]"
	}
	for _, p := range decodeAll[admission.ValidatingAdmissionPolicy](t, documents) {
		if !bound[p.Name] || *p.Spec.FailurePolicy != admission.Fail {
			t.Errorf("%s does not deny", p.Name)
		}
		for user, want := range map[string]bool{"system:serviceaccount:podgauge:podgauge-kube": true, "system:serviceaccount:podgauge:podgauge": false, "admin": false} {
			request := map[string]any{"request": map[string]any{"userInfo": map[string]any{"username": user}}}
			expect.Equal(t, evaluate(t, p.Spec.MatchConditions[0].Expression, request), want,
				p.Name, "applies to", user)
		}
	}
	expect.Equal(t, len(bound), 3, "bindings")
	older, _, err := renderChartFor(olderVersion, allWriters)
	require.NoError(t, err)
	for _, d := range older {
		if strings.HasPrefix(d.Kind, "ValidatingAdmission") {
			t.Errorf("Kubernetes %s has no %s", olderVersion, d.Kind)
		}
	}
}

// TestConditionTypes checks which conditions the policy accepts by preset and type.
func TestConditionTypes(t *testing.T) {
	for values, want := range map[string]string{
		`{}`:                                   `["GPUUnhealthy"]`,
		`{preset: eks}`:                        `["AcceleratedHardwareReady"]`,
		`{preset: aks}`:                        `["GPUMissing","NVLinkStatusInactive","XIDErrors"]`,
		`{preset: eks, type: example.com/GPU}`: `["example.com/GPU"]`,
	} {
		policy := decodeAll[admission.ValidatingAdmissionPolicy](t, mustRender(t, `kubernetes: {nodeCondition: true, condition: `+values+`}`))[0]
		if expression := policy.Spec.Validations[0].Expression; strings.Count(expression, "c.type in "+want) != 2 {
			t.Errorf("%s: got %s, want types %s", values, expression, want)
		}
	}
}

// admissionRequest returns the variables of a request.
func admissionRequest(t *testing.T, old, object string) map[string]any {
	t.Helper()
	operation := "UPDATE"
	switch "" {
	case old:
		operation = "CREATE"
	case object:
		operation = "DELETE"
	}
	variables := map[string]any{"request": map[string]any{"operation": operation}}
	for name, text := range map[string]string{"object": object, "oldObject": old} {
		var value map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(text), &value))
		if variables[name] = value; text == "" {
			variables[name] = nil
		}
	}
	return variables
}

// evaluate evaluates an expression with the variables of a request, as an API server does. An error refuses.
func evaluate(t *testing.T, expression string, variables map[string]any) bool {
	t.Helper()
	env, err := cel.NewEnv(cel.OptionalTypes(), cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType))
	require.NoError(t, err)
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", expression, issues.Err())
	}
	program, err := env.Program(ast)
	require.NoError(t, err)
	result, _, err := program.Eval(variables)
	return err == nil && result.Value() == true
}
