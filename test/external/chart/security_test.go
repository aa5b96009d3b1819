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

// podRequirements are the features of a case that ask for more than every pod has.
type podRequirements struct {
	privileged, hostPID bool
	capabilities        []core.Capability
	metricsOnly         bool // without the device plugin: the device-plugins folder is read-only
	hostNetwork         bool
	containers          int      // beside podgauge's
	rules               []string // of the API server: verbs and resource
}

// caseRequirements is what each case asks for beyond nothing. A case that is not here gets nothing.
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

// allowedMounts are the folders of the node that a pod may have, whether it may write to them, and what for.
var allowedMounts = map[string]struct {
	writes bool
	why    string
}{
	"/var/lib/kubelet/device-plugins":       {true, "podgauge's socket is made beside the kubelet's"},
	"/var/lib/kubelet/pod-resources":        {false, "who holds which device"},
	"/var/lib/kubelet/pods-api":             {false, "how pods ended, and their UIDs and labels"},
	"/var/lib/podgauge":                     {true, "health and incidents outlive the pod"},
	"/var/log/pods":                         {false, "whose a process is"},
	"/var/log/containers":                   {false, "whose a process is"},
	"/dev":                                  {false, "the devices, where nobody injects them"},
	"/dev/kmsg":                             {false, "the kernel's log"},
	"/driver-root":                          {false, "the driver's library and files"},
	"/var/run/cdi":                          {true, "CDI specs"},
	"/mps":                                  {false, "whether MPS control daemons answer"},
	"/var/run/nvidia-container-devices/all": {false, "NVIDIA's runtime reads the list of devices there"},
}

// TestSecurity: what a pod may do to its node, in each case.
func TestSecurity(t *testing.T) {
	known := map[string]bool{}
	for _, c := range allCases(t) {
		known[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			documents := mustRender(t, c.values)
			checkRules(t, documents, caseRequirements[c.name].rules)
			for _, account := range decodeAll[core.ServiceAccount](t, documents) {
				if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
					t.Errorf("the ServiceAccount %s gives away its token", account.Name)
				}
			}
			sets := decodeAll[apps.DaemonSet](t, documents)
			if len(sets) != 1 {
				t.Fatalf("there are %d DaemonSets", len(sets))
			}
			checkPodSecurity(t, sets[0].Spec.Template.Spec, caseRequirements[c.name])
			checkUpdateStrategy(t, sets[0].Spec.UpdateStrategy)
			for _, scc := range decodeAll[securityConstraints](t, documents) {
				checkConstraints(t, *scc, sets[0].Spec.Template.Spec)
			}
		})
	}
	for name := range caseRequirements {
		if !known[name] {
			t.Errorf("%s is no case", name)
		}
	}
}

// checkRules checks the permissions of the service account: exactly the wanted verbs and resources of the core group.
func checkRules(t *testing.T, documents []chartObject, want []string) {
	t.Helper()
	var got []string
	for _, role := range decodeAll[rbac.ClusterRole](t, documents) {
		for _, rule := range role.Rules {
			if !slices.Equal(rule.APIGroups, []string{""}) || len(rule.NonResourceURLs) > 0 {
				t.Errorf("rule %+v", rule)
			}
			got = append(got, strings.Join(rule.Verbs, ",")+" "+strings.Join(rule.Resources, ","))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("rules %q, want %q", got, want)
	}
	bindings := decodeAll[rbac.ClusterRoleBinding](t, documents)
	if len(bindings) != min(len(want), 1) {
		t.Errorf("%d bindings", len(bindings))
	}
	for _, d := range documents {
		if strings.Contains(d.APIVersion, "rbac") && !strings.HasPrefix(d.Kind, "ClusterRole") {
			t.Errorf("there is a %s", d.Kind)
		}
	}
}

func checkPodSecurity(t *testing.T, pod core.PodSpec, a podRequirements) {
	t.Helper()
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken != (len(a.rules) > 0) {
		t.Error("the pod has a token without need, or none")
	}
	if pod.HostNetwork != a.hostNetwork || pod.HostIPC || pod.ShareProcessNamespace != nil {
		t.Error("the pod shares what it need not")
	}
	if pod.HostPID != a.hostPID {
		t.Errorf("hostPID is %v", pod.HostPID)
	}
	if s := pod.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser != 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security context is %+v", s)
	}
	if wanted := map[bool]core.DNSPolicy{true: core.DNSClusterFirstWithHostNet}[a.hostNetwork]; a.containers == 0 && pod.DNSPolicy != wanted {
		t.Errorf("dnsPolicy is %q", pod.DNSPolicy)
	}
	if len(pod.InitContainers)+len(pod.Containers) != 1+a.containers {
		t.Error("there is another number of containers")
	}
	container := pod.Containers[0]
	for _, port := range container.Ports {
		if port.HostPort != 0 != a.hostNetwork || a.hostNetwork && port.HostPort != port.ContainerPort {
			t.Errorf("port %s is %d of the node", port.Name, port.HostPort)
		}
	}
	s := container.SecurityContext
	switch {
	case s == nil || s.Capabilities == nil:
		t.Fatal("the container has no security context")
	case !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}):
		t.Errorf("it drops %v", s.Capabilities.Drop)
	case !slices.Equal(s.Capabilities.Add, a.capabilities):
		t.Errorf("it has %v", s.Capabilities.Add)
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		t.Error("its root can be written to")
	case (s.Privileged != nil && *s.Privileged) != a.privileged:
		t.Errorf("privileged is %v", s.Privileged)
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation != a.privileged: // the API server wants it so
		t.Errorf("allowPrivilegeEscalation is %v", s.AllowPrivilegeEscalation)
	case s.SeccompProfile != nil || s.ProcMount != nil || s.RunAsUser != nil:
		t.Error("it has a profile or a user of its own")
	}
	if limit := container.Resources.Limits.Memory(); limit.IsZero() || container.Resources.Requests.Memory().Cmp(*limit) > 0 {
		t.Errorf("its memory is %v of %v", container.Resources.Requests.Memory(), limit)
	}
	checkMounts(t, pod, a)
}

// checkMounts wants each folder of the node to be one of those that are known, each volume to be mounted, and nothing to be
// written to that need not be.
func checkMounts(t *testing.T, pod core.PodSpec, a podRequirements) {
	t.Helper()
	mounts := map[string]core.VolumeMount{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.SubPath != "" {
			t.Errorf("%s is mounted by a subPath, which follows no change", m.Name)
		}
		if m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationBidirectional {
			t.Errorf("%s reaches out to the node", m.Name)
		}
		mounts[m.Name] = m
	}
	for _, v := range pod.Volumes {
		m, is := mounts[v.Name]
		if !is {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
		delete(mounts, v.Name)
		if v.HostPath == nil {
			continue
		}
		row, is := allowedMounts[m.MountPath]
		if !is || row.why == "" {
			t.Errorf("%s of the node is mounted at %s, and nobody says why", v.HostPath.Path, m.MountPath)
		}
		writes := row.writes && (!a.metricsOnly || v.Name != "device-plugins")
		if m.ReadOnly == writes {
			t.Errorf("%s: readOnly is %v", m.MountPath, m.ReadOnly)
		}
		if v.HostPath.Type == nil || *v.HostPath.Type == core.HostPathUnset {
			t.Errorf("%s is made by whoever starts the container, where it is missing", v.HostPath.Path)
		}
	}
	for name := range mounts {
		t.Errorf("there is no volume %s", name)
	}
}

// TestImages: every container's image is the one that the values name, so that a registry of one's own has them all. The image of
// podgauge-sim is beside it.
func TestImages(t *testing.T) {
	const named = `global: {imageRegistry: ""}
image: {registry: "", repository: registry.test/mirror/podgauge, tag: v9, digest: "", pullPolicy: Never}`
	for _, c := range allCases(t) {
		want := "registry.test/mirror/podgauge:v9"
		if strings.Contains(c.values, "simulate") {
			want = "registry.test/mirror/podgauge-sim:v9"
		}
		for _, container := range decodeAll[apps.DaemonSet](t, mustRender(t, c.values, named))[0].Spec.Template.Spec.Containers[:1] {
			if container.Image != want || container.ImagePullPolicy != core.PullNever {
				t.Errorf("%s: %s is pulled (%s)", c.name, container.Image, container.ImagePullPolicy)
			}
		}
	}
}

// TestRegistries: a registry of the values replaces that of the repository, and global's comes first.
func TestRegistries(t *testing.T) {
	for values, want := range map[string]string{
		``:                          "ghcr.io/podgauge/podgauge:v1",
		`image: {registry: r.test}`: "r.test/podgauge/podgauge:v1",
		`{global: {imageRegistry: g.test:5000}, image: {registry: r.test}}`:   "g.test:5000/podgauge/podgauge:v1",
		`{global: {imageRegistry: g.test/mirror}, simulate: hardware}`:        "g.test/mirror/podgauge/podgauge-sim:v1",
		`{image: {registry: r.test, repository: mirror/podgauge}}`:            "r.test/mirror/podgauge:v1",
		`{image: {registry: r.test, repository: localhost/podgauge}}`:         "r.test/podgauge:v1",
		`{image: {registry: r.test, repository: "old.test:5000/a/podgauge"}}`: "r.test/a/podgauge:v1",
		`{global: null, image: {repository: podgauge}}`:                       "podgauge:v1",
	} {
		got := decodeAll[apps.DaemonSet](t, mustRender(t, values, `image: {tag: v1}`))[0].Spec.Template.Spec.Containers[0].Image
		if got != want {
			t.Errorf("%s: the image is %s, want %s", values, got, want)
		}
	}
}

// checkUpdateStrategy: two device plugins at a time on a node make kubelets up to 1.36 lose all GPUs.
func checkUpdateStrategy(t *testing.T, u apps.DaemonSetUpdateStrategy) {
	t.Helper()
	if u.Type == apps.OnDeleteDaemonSetStrategyType {
		return
	}
	if u.RollingUpdate == nil || u.RollingUpdate.MaxSurge == nil || u.RollingUpdate.MaxSurge.String() != "0" || u.RollingUpdate.MaxUnavailable == nil {
		t.Errorf("an update goes by %+v", u.RollingUpdate)
	}
}

// checkConstraints holds OpenShift's constraints against what the pod asks for: no more, and no less.
func checkConstraints(t *testing.T, scc securityConstraints, pod core.PodSpec) {
	t.Helper()
	s := pod.Containers[0].SecurityContext
	privileged := s.Privileged != nil && *s.Privileged
	if scc.AllowPrivilegedContainer != privileged || scc.AllowPrivilegeEscalation == nil || *scc.AllowPrivilegeEscalation != privileged {
		t.Errorf("privileged: %v and %v are allowed", scc.AllowPrivilegedContainer, *scc.AllowPrivilegeEscalation)
	}
	if scc.AllowHostPID != pod.HostPID || scc.AllowHostNetwork != pod.HostNetwork || scc.AllowHostIPC || scc.AllowHostPorts != pod.HostNetwork {
		t.Error("the node's namespaces are not allowed as they are asked for")
	}
	if !slices.Equal(scc.AllowedCapabilities, s.Capabilities.Add) && len(scc.AllowedCapabilities)+len(s.Capabilities.Add) > 0 {
		t.Errorf("%v are allowed", scc.AllowedCapabilities)
	}
	if !scc.AllowHostDirVolumePlugin || !scc.ReadOnlyRootFilesystem || !slices.Contains(scc.SeccompProfiles, "runtime/default") {
		t.Errorf("the constraints are %+v", scc)
	}
	for _, v := range pod.Volumes {
		var kinds map[string]any
		if err := json.Unmarshal(mustJSON(t, v), &kinds); err != nil {
			t.Fatal(err)
		}
		delete(kinds, "name")
		for kind := range kinds {
			if !slices.Contains(scc.Volumes, kind) {
				t.Errorf("%s is a volume of a kind that is not allowed", v.Name)
			}
		}
	}
	if want := "system:serviceaccount:podgauge:" + pod.ServiceAccountName; !slices.Equal(scc.Users, []string{want}) {
		t.Errorf("they are for %v", scc.Users)
	}
}
