package chart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
)

// podRequirements are the additional privileges of a case.
type podRequirements struct {
	privileged, hostPID bool
	capabilities        []core.Capability
	metricsOnly         bool // without the device plugin: the device-plugins folder is read-only
	hostNetwork         bool
	containers          int      // besides podgauge's
	rules               []string // of the API server: verbs and resource
}

// caseRequirements has the additional privileges of cases; other cases have none.
var caseRequirements = map[string]podRequirements{
	"measure-only": {metricsOnly: true},
	"host-network": {hostNetwork: true},
	"extras":       {containers: 2},
	"kubernetes":   {rules: []string{"create,patch events", "get pods", "patch nodes/status", "list,watch pods", "list,watch nodes"}},
	"gke":          {privileged: true},
	"processes":    {hostPID: true},
	"time-slicing": {hostPID: true},
	"kernel-log":   {privileged: true, capabilities: []core.Capability{"SYSLOG"}},
	"host-driver":  {privileged: true},
	"mig":          {capabilities: []core.Capability{"SYS_ADMIN"}},
	"mig-single":   {capabilities: []core.Capability{"SYS_ADMIN"}},
	"mig-seen":     {capabilities: []core.Capability{"SYS_ADMIN"}},
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
			checkRules(t, documents, caseRequirements[c.name].rules)
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

// checkRules checks that the service account has exactly the wanted verbs and resources of the core group.
func checkRules(t *testing.T, documents []chartObject, want []string) {
	t.Helper()
	var got []string
	for _, role := range decodeAll[rbac.ClusterRole](t, documents) {
		for _, rule := range role.Rules {
			if !slices.Equal(rule.APIGroups, []string{""}) || len(rule.NonResourceURLs) > 0 {
				t.Errorf("unexpected rule %+v", rule)
			}
			got = append(got, strings.Join(rule.Verbs, ",")+" "+strings.Join(rule.Resources, ","))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got rules %q, want %q", got, want)
	}
	bindings := decodeAll[rbac.ClusterRoleBinding](t, documents)
	if len(bindings) != min(len(want), 1) {
		t.Errorf("got %d bindings", len(bindings))
	}
	for _, d := range documents {
		if strings.Contains(d.APIVersion, "rbac") && !strings.HasPrefix(d.Kind, "ClusterRole") {
			t.Errorf("unexpected %s", d.Kind)
		}
	}
}

// checkPodSecurity checks what the level baseline of TestPodSecurityLevel leaves open.
func checkPodSecurity(t *testing.T, pod core.PodSpec, want podRequirements) {
	t.Helper()
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken != (len(want.rules) > 0) {
		t.Errorf("automountServiceAccountToken: want %t", len(want.rules) > 0)
	}
	if pod.ShareProcessNamespace != nil {
		t.Error("the containers share the namespace of processes")
	}
	if s := pod.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser != 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context of the pod: got %+v", s)
	}
	if policy := map[bool]core.DNSPolicy{true: core.DNSClusterFirstWithHostNet}[want.hostNetwork]; want.containers == 0 && pod.DNSPolicy != policy {
		t.Errorf("dnsPolicy: got %q, want %q", pod.DNSPolicy, policy)
	}
	if len(pod.InitContainers)+len(pod.Containers) != 1+want.containers {
		t.Errorf("got %d containers, want %d", len(pod.InitContainers)+len(pod.Containers), 1+want.containers)
	}
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
		if err := json.Unmarshal(mustJSON(t, v), &kinds); err != nil {
			t.Fatal(err)
		}
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
