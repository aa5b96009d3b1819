package chart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// podRequirements are the additional privileges of a case.
type podRequirements struct {
	privileged, hostPID bool
	capabilities        []core.Capability
	metricsOnly         bool // without the device plugin: the device-plugins folder is read-only
	hostNetwork         bool
	containers          int      // besides podgauge's
	rules               []string // of podgauge's service account, whose token the sidecar has: verbs and resource
	controller          []string // rules of the controller's service account
}

// Rules of the controller by feature.
var (
	nodeRule       = []string{"get nodes"}
	eventRules     = []string{"create,patch events", "get pods"}
	conditionRules = []string{"patch nodes/status"}
	taintRules     = []string{"list,watch,create,update,delete resource.k8s.io/devicetaintrules", "list resource.k8s.io/resourceslices"}
)

// caseRequirements has the additional privileges of cases; other cases have none.
var caseRequirements = map[string]podRequirements{
	"measure-only": {metricsOnly: true},
	"host-network": {hostNetwork: true},
	"extras":       {containers: 2},
	"kubernetes": {
		containers: 2, rules: []string{"list,watch pods", "list,watch nodes", "get resource.k8s.io/resourceclaims"},
		controller: slices.Concat(nodeRule, eventRules, conditionRules, taintRules),
	},
	"kubernetes-events":     {controller: slices.Concat(nodeRule, eventRules)},
	"kubernetes-controller": {hostNetwork: true, controller: slices.Concat(nodeRule, conditionRules, taintRules)},
	"kubernetes-sidecar": {
		containers: 3, rules: []string{"list,watch pods", "list,watch nodes", "get resource.k8s.io/resourceclaims"},
	},
	"gke":          {privileged: true},
	"processes":    {hostPID: true},
	"time-slicing": {hostPID: true},
	"kernel-log":   {privileged: true, capabilities: []core.Capability{"SYSLOG"}},
	"host-driver":  {privileged: true},
	"dra-driver":   {privileged: true, metricsOnly: true, controller: slices.Concat(nodeRule, taintRules)},
	"gpucluster":   {privileged: true, metricsOnly: true, controller: slices.Concat(nodeRule, taintRules)},
	"mig":          {capabilities: []core.Capability{"SYS_ADMIN"}},
	"mig-single":   {capabilities: []core.Capability{"SYS_ADMIN"}},
	"mig-seen":     {capabilities: []core.Capability{"SYS_ADMIN"}},
	"nvidia":       {capabilities: []core.Capability{"SYS_ADMIN"}},
	"everything":   {privileged: true, hostPID: true, capabilities: []core.Capability{"SYS_ADMIN", "SYSLOG"}},
}

// allowedMounts are the host paths that a pod may mount, with write access and reason.
var allowedMounts = map[string]struct {
	writable bool
	reason   string
}{
	"/var/lib/kubelet/device-plugins":       {true, "podgauge's socket"},
	"/var/lib/kubelet/pod-resources":        {false, "allocations of devices"},
	"/var/lib/kubelet/pods-api":             {false, "terminations, UIDs and labels of pods"},
	"/var/lib/podgauge":                     {true, "state: health and incidents"},
	"/var/log/pods":                         {false, "owners of processes"},
	"/var/log/containers":                   {false, "owners of processes"},
	"/dev":                                  {false, "device nodes without injection"},
	"/dev/kmsg":                             {false, "kernel log"},
	"/driver-root":                          {false, "driver library and files"},
	"/var/run/cdi":                          {true, "CDI specs"},
	"/var/lib/podgauge-jobs":                {false, "jobs of GPUs"},
	"/host/sys/class":                       {false, "RDMA ports"},
	"/host/sys/devices":                     {false, "RDMA ports"},
	"/mps":                                  {false, "state of MPS control daemons"},
	"/var/run/nvidia-container-devices/all": {false, "list of devices for NVIDIA's runtime"},
}

// TestSecurity checks the privileges of each case on the node.
func TestSecurity(t *testing.T) {
	known := map[string]bool{}
	for _, c := range allCases(t) {
		known[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			documents := mustRender(t, c.values)
			checkRules(t, documents, map[string][]string{
				releaseAccount: caseRequirements[c.name].rules, controllerAccount(c.name): caseRequirements[c.name].controller,
			})
			for _, account := range decodeAll[core.ServiceAccount](t, documents) {
				if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
					t.Errorf("the ServiceAccount %s mounts its token", account.Name)
				}
			}
			sets := decodeAll[apps.DaemonSet](t, documents)
			if len(sets) != 1 {
				t.Fatalf("got %d DaemonSets, want 1", len(sets))
			}
			checkPodSecurity(t, sets[0].Spec.Template.Spec, caseRequirements[c.name])
			checkUpdateStrategy(t, sets[0].Spec.UpdateStrategy, c.name == "surge")
			for _, scc := range decodeAll[securityConstraints](t, documents) {
				checkConstraints(t, *scc, sets[0].Spec.Template.Spec)
			}
		})
	}
	for name := range caseRequirements {
		if !known[name] {
			t.Errorf("unknown case %s", name)
		}
	}
}

// releaseAccount is the service account of podgauge's pods.
const releaseAccount = "podgauge"

// controllerAccount is the service account of the controller of a case.
func controllerAccount(name string) string {
	if name == "kubernetes-controller" {
		return "gpu-writer"
	}
	return "podgauge-kube"
}

// checkRules checks that the service accounts have exactly the wanted verbs and resources in the cluster, and the controller those for
// podgauge's pods and its lease in the namespace.
func checkRules(t *testing.T, documents []chartObject, want map[string][]string) {
	t.Helper()
	got := map[string][]string{}
	roles := map[string][]rbac.PolicyRule{}
	for _, role := range decodeAll[rbac.ClusterRole](t, documents) {
		roles[role.Name] = role.Rules
	}
	for _, binding := range decodeAll[rbac.ClusterRoleBinding](t, documents) {
		got[subjectName(t, binding.Subjects)] = ruleTexts(roles[binding.RoleRef.Name])
		delete(roles, binding.RoleRef.Name)
	}
	if len(roles) > 0 {
		t.Errorf("roles without a binding: %v", roles)
	}
	for _, role := range decodeAll[rbac.Role](t, documents) {
		wantRules := []string{"list,watch pods", "create coordination.k8s.io/leases", "get,update coordination.k8s.io/leases podgauge-kube"}
		expect.EqualSlices(t, ruleTexts(role.Rules), wantRules, "rules in the namespace")
	}
	hasController := 0
	for account, rules := range want {
		expect.EqualSlices(t, got[account], rules, "rules of", account)
		if delete(got, account); account != releaseAccount && len(rules) > 0 {
			hasController = 1
		}
	}
	bindings := decodeAll[rbac.RoleBinding](t, documents)
	for _, binding := range bindings {
		if account := subjectName(t, binding.Subjects); len(want[account]) == 0 || account == releaseAccount {
			t.Errorf("the role %s is bound to %s", binding.RoleRef.Name, account)
		}
	}
	if len(got) > 0 || len(bindings) != hasController {
		t.Errorf("unexpected rules %q, or %d bindings in the namespace", got, len(bindings))
	}
}

// subjectName returns the name of a binding's only service account.
func subjectName(t *testing.T, subjects []rbac.Subject) string {
	t.Helper()
	if len(subjects) != 1 || subjects[0].Kind != "ServiceAccount" {
		t.Fatalf("got subjects %v, want a service account", subjects)
	}
	return subjects[0].Name
}

// ruleTexts returns the verbs, group and resources, and names, of each rule.
func ruleTexts(rules []rbac.PolicyRule) (texts []string) {
	for _, rule := range rules {
		group := ""
		if g := strings.Join(rule.APIGroups, ","); g != "" {
			group = g + "/"
		}
		words := slices.Concat([]string{strings.Join(rule.Verbs, ","), group + strings.Join(rule.Resources, ",")}, rule.ResourceNames, rule.NonResourceURLs)
		texts = append(texts, strings.Join(words, " "))
	}
	return texts
}

// checkPodSecurity checks what the level baseline of TestPodSecurityLevel leaves open.
func checkPodSecurity(t *testing.T, pod core.PodSpec, want podRequirements) {
	t.Helper()
	checkToken(t, pod, len(want.rules) > 0)
	if pod.ShareProcessNamespace != nil {
		t.Error("the containers share the namespace of processes")
	}
	if s := pod.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser != 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context of the pod: got %+v", s)
	}
	if policy := map[bool]core.DNSPolicy{true: core.DNSClusterFirstWithHostNet}[want.hostNetwork]; want.containers == 0 && pod.DNSPolicy != policy {
		t.Errorf("dnsPolicy: got %q, want %q", pod.DNSPolicy, policy)
	}
	expect.Equal(t, len(pod.InitContainers)+len(pod.Containers), 1+want.containers, "containers")
	container := pod.Containers[0]
	s := container.SecurityContext
	switch {
	case s == nil || s.Capabilities == nil:
		t.Fatal("the container has no security context")
	case !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}):
		t.Errorf("dropped capabilities: got %v, want ALL", s.Capabilities.Drop)
	case !slices.Equal(s.Capabilities.Add, want.capabilities):
		t.Errorf("added capabilities: got %v, want %v", s.Capabilities.Add, want.capabilities)
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		t.Error("the root file system is writable")
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation != want.privileged: // required by the API server
		t.Errorf("allowPrivilegeEscalation: got %v, want %v", s.AllowPrivilegeEscalation, want.privileged)
	case s.SeccompProfile != nil || s.RunAsUser != nil:
		t.Error("the container overrides the profile or user")
	}
	if limit := container.Resources.Limits.Memory(); limit.IsZero() || container.Resources.Requests.Memory().Cmp(*limit) > 0 {
		t.Errorf("memory: got request %v, limit %v", container.Resources.Requests.Memory(), limit)
	}
	checkMounts(t, pod, want)
}

// checkToken checks that only the containers of podgauge-kube have the token of the service account, and that these have no folder of the
// node, capability or privilege.
func checkToken(t *testing.T, pod core.PodSpec, hasSidecar bool) {
	t.Helper()
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("the pod mounts the token in all containers")
	}
	volumes := map[string]core.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	withToken := 0
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		isSidecar := strings.HasPrefix(container.Name, "podgauge-kube")
		for _, m := range container.VolumeMounts {
			v := volumes[m.Name]
			if v.Projected != nil {
				withToken++
			}
			if (v.Projected != nil) != (isSidecar && m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount") || isSidecar && v.HostPath != nil {
				t.Errorf("%s has %s at %s", container.Name, m.Name, m.MountPath)
			}
		}
		if s := container.SecurityContext; isSidecar && (s.Privileged != nil || len(s.Capabilities.Add) > 0 || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) ||
			*s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem) {
			t.Errorf("security context of %s: got %+v", container.Name, s)
		}
	}
	expect.Equal(t, hasSidecar, (withToken > 0), "got", withToken, "containers with a token, want some")
}

// checkMounts checks that each host path is allowed, with the minimum access, and that each volume is mounted.
func checkMounts(t *testing.T, pod core.PodSpec, want podRequirements) {
	t.Helper()
	mounts := map[string]core.VolumeMount{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.SubPath != "" {
			t.Errorf("%s is mounted with a subPath, which does not follow changes", m.Name)
		}
		if m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationBidirectional {
			t.Errorf("%s propagates mounts to the node", m.Name)
		}
		mounts[m.Name] = m
	}
	for _, v := range pod.Volumes {
		if v.Projected != nil { // the sidecar's token
			continue
		}
		m, ok := mounts[v.Name]
		if !ok {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
		delete(mounts, v.Name)
		if v.HostPath == nil {
			continue
		}
		row, ok := allowedMounts[m.MountPath]
		if !ok || row.reason == "" {
			t.Errorf("host path %s at %s is not in allowedMounts", v.HostPath.Path, m.MountPath)
		}
		writable := row.writable && (!want.metricsOnly || v.Name != "device-plugins")
		if m.ReadOnly == writable {
			t.Errorf("readOnly of %s: got %v, want %v", m.MountPath, m.ReadOnly, !writable)
		}
		if v.HostPath.Type == nil || *v.HostPath.Type == core.HostPathUnset {
			t.Errorf("host path %s lacks a type, so the container runtime would create it", v.HostPath.Path)
		}
	}
	for name := range mounts {
		t.Errorf("missing volume %s", name)
	}
}

// checkUpdateStrategy checks that only the case with a surge has one: with two device plugins on a node, kubelets up to 1.36 drop all GPUs
// when one exits. The API server accepts either a surge or unavailable pods.
func checkUpdateStrategy(t *testing.T, u apps.DaemonSetUpdateStrategy, isSurge bool) {
	t.Helper()
	if u.Type == apps.OnDeleteDaemonSetStrategyType {
		return
	}
	r := u.RollingUpdate
	if r == nil || r.MaxSurge == nil || r.MaxUnavailable == nil || (r.MaxSurge.String() != "0") != isSurge || (r.MaxUnavailable.String() == "0") != isSurge {
		t.Errorf("update strategy: got %+v", r)
	}
}

// checkConstraints checks that OpenShift's constraints allow exactly the privileges of the pod.
func checkConstraints(t *testing.T, scc securityConstraints, pod core.PodSpec) {
	t.Helper()
	s := pod.Containers[0].SecurityContext
	privileged := s.Privileged != nil && *s.Privileged
	if scc.AllowPrivilegedContainer != privileged || scc.AllowPrivilegeEscalation == nil || *scc.AllowPrivilegeEscalation != privileged {
		t.Errorf("privileged: want %v, allowed are %v, %v", privileged, scc.AllowPrivilegedContainer, *scc.AllowPrivilegeEscalation)
	}
	if scc.AllowHostPID != pod.HostPID || scc.AllowHostNetwork != pod.HostNetwork || scc.AllowHostIPC || scc.AllowHostPorts != pod.HostNetwork {
		t.Error("the allowed host namespaces differ from the pod's")
	}
	if !slices.Equal(scc.AllowedCapabilities, s.Capabilities.Add) && len(scc.AllowedCapabilities)+len(s.Capabilities.Add) > 0 {
		t.Errorf("allowed capabilities: got %v, want %v", scc.AllowedCapabilities, s.Capabilities.Add)
	}
	if !scc.AllowHostDirVolumePlugin || !scc.ReadOnlyRootFilesystem || !slices.Contains(scc.SeccompProfiles, "runtime/default") {
		t.Errorf("constraints: got %+v", scc)
	}
	for _, v := range pod.Volumes {
		var kinds map[string]any
		require.NoError(t, json.Unmarshal(mustJSON(t, v), &kinds))
		delete(kinds, "name")
		for kind := range kinds {
			if !slices.Contains(scc.Volumes, kind) {
				t.Errorf("volume %s: the type %s is not allowed", v.Name, kind)
			}
		}
	}
	if want := "system:serviceaccount:podgauge:" + pod.ServiceAccountName; !slices.Equal(scc.Users, []string{want}) {
		t.Errorf("users: got %v, want %s", scc.Users, want)
	}
}

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
		expect.EqualSlices(t, got, want, name, "violations of baseline")
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
	expect.Equal(t, string(mustJSON(t, policies[0].Spec.Ingress[0].From)), wantPeers, "peers of podgauge")
	const wantEgress = `[{"ports":[{"protocol":"TCP","port":8443}],"to":[{"ipBlock":{"cidr":"10.0.0.1/32"}}]},` +
		`{"ports":[{"protocol":"TCP","port":9400}],"to":[{"podSelector":{"matchLabels":{"app.kubernetes.io/instance":"podgauge","app.kubernetes.io/name":"podgauge"}}}]}]`
	expect.Equal(t, string(mustJSON(t, policies[1].Spec.Egress)), wantEgress, "egress of the controller")
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
		expect.Equal(t, string(mustJSON(t, policy.Spec.Egress)), want, values)
	}
}
