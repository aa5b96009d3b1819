package chart

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// securityConstraints are OpenShift's SecurityContextConstraints (security.openshift.io/v1), with the fields of the CRD. The Go module has
// no usable version.
type securityConstraints struct {
	meta.TypeMeta            `json:",inline"`
	meta.ObjectMeta          `json:"metadata"`
	Priority                 *int32            `json:"priority"`
	AllowPrivilegedContainer bool              `json:"allowPrivilegedContainer"`
	DefaultAddCapabilities   []core.Capability `json:"defaultAddCapabilities"`
	RequiredDropCapabilities []core.Capability `json:"requiredDropCapabilities"`
	AllowedCapabilities      []core.Capability `json:"allowedCapabilities"`
	AllowHostDirVolumePlugin bool              `json:"allowHostDirVolumePlugin"`
	Volumes                  []string          `json:"volumes"`
	AllowHostNetwork         bool              `json:"allowHostNetwork"`
	AllowHostPorts           bool              `json:"allowHostPorts"`
	AllowHostPID             bool              `json:"allowHostPID"`
	AllowHostIPC             bool              `json:"allowHostIPC"`
	AllowPrivilegeEscalation *bool             `json:"allowPrivilegeEscalation"`
	SELinuxContext           sccStrategy       `json:"seLinuxContext"`
	RunAsUser                sccStrategy       `json:"runAsUser"`
	SupplementalGroups       sccStrategy       `json:"supplementalGroups"`
	FSGroup                  sccStrategy       `json:"fsGroup"`
	ReadOnlyRootFilesystem   bool              `json:"readOnlyRootFilesystem"`
	Users                    []string          `json:"users"`
	Groups                   []string          `json:"groups"`
	SeccompProfiles          []string          `json:"seccompProfiles"`
}

type sccStrategy struct {
	Type string `json:"type"`
}

// clusterPodMonitoring has the used fields of Google's managed collection
// (https://github.com/GoogleCloudPlatform/prometheus-engine/blob/main/doc/api.md).
type clusterPodMonitoring struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector  meta.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Interval string `json:"interval"`
		} `json:"endpoints"`
		TargetLabels struct {
			Metadata []string `json:"metadata"`
		} `json:"targetLabels"`
	} `json:"spec"`
}

// objectTypes are the types of the chart's objects.
var objectTypes = map[string]func() any{
	"v1 Namespace":                                    func() any { return new(core.Namespace) },
	"v1 ServiceAccount":                               func() any { return new(core.ServiceAccount) },
	"v1 ConfigMap":                                    func() any { return new(core.ConfigMap) },
	"v1 Secret":                                       func() any { return new(core.Secret) },
	"v1 ResourceQuota":                                func() any { return new(core.ResourceQuota) },
	"v1 Service":                                      func() any { return new(core.Service) },
	"apps/v1 DaemonSet":                               func() any { return new(apps.DaemonSet) },
	"apps/v1 Deployment":                              func() any { return new(apps.Deployment) },
	"networking.k8s.io/v1 NetworkPolicy":              func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":             func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1 ServiceMonitor":         func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule":         func() any { return new(monitoring.PrometheusRule) },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return new(rbac.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return new(rbac.ClusterRoleBinding) },
	"rbac.authorization.k8s.io/v1 Role":               func() any { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding":        func() any { return new(rbac.RoleBinding) },

	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        func() any { return new(admission.ValidatingAdmissionPolicy) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": func() any { return new(admission.ValidatingAdmissionPolicyBinding) },

	"monitoring.googleapis.com/v1 ClusterPodMonitoring":   func() any { return new(clusterPodMonitoring) },
	"security.openshift.io/v1 SecurityContextConstraints": func() any { return new(securityConstraints) },
}

// decode decodes an object strictly. Unknown fields, fields in a different case and duplicate fields are errors, as for an API server with
// strict validation.
func decode(d chartObject) (any, error) {
	fresh, known := objectTypes[d.APIVersion+" "+d.Kind]
	if !known {
		return nil, fmt.Errorf("unexpected type %s %s", d.APIVersion, d.Kind)
	}
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, err
	}
	object := fresh()
	unknown, err := json.UnmarshalStrict(text, object)
	return object, errors.Join(append(unknown, err)...)
}

// decodeAll decodes all objects and returns the objects of one type.
func decodeAll[T any](t *testing.T, all []chartObject) (found []*T) {
	t.Helper()
	for _, d := range all {
		object, err := decode(d)
		if err != nil {
			t.Fatalf("%s %s: %v", d.Kind, d.Metadata.Name, err)
		}
		if one, ok := object.(*T); ok {
			found = append(found, one)
		}
	}
	return found
}

// clusterKinds are the kinds of the chart without a namespace.
var clusterKinds = []string{
	"Namespace", "SecurityContextConstraints", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}

// TestTypes checks that each object matches the types of Kubernetes, the Prometheus operator or OpenShift, has the common labels, and is
// in the release's namespace.
func TestTypes(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCases(t) {
		t.Run(c.name, func(t *testing.T) {
			names := map[string]bool{}
			for _, d := range mustRender(t, c.values) {
				seen[d.APIVersion+" "+d.Kind] = true
				if _, err := decode(d); err != nil {
					t.Errorf("%s %s: %v", d.Kind, d.Metadata.Name, err)
				}
				if name := d.Kind + " " + d.Metadata.Name; names[name] {
					t.Errorf("duplicate %s", name)
				} else {
					names[name] = true
				}
				if d.template == "extra.yaml" {
					continue // labels and namespace are the user's
				}
				for _, label := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
					if d.Metadata.Labels[label] == "" {
						t.Errorf("%s %s lacks the label %s", d.Kind, d.Metadata.Name, label)
					}
				}
				if cluster := slices.Contains(clusterKinds, d.Kind); cluster != (d.Metadata.Namespace == "") {
					t.Errorf("%s %s: got namespace %q", d.Kind, d.Metadata.Name, d.Metadata.Namespace)
				}
			}
		})
	}
	for kind := range objectTypes {
		if !seen[kind] {
			t.Errorf("no case with a %s", kind)
		}
	}
}

// TestSelectors checks that all selectors match the pods, and all ports are the pod's, for all names and labels.
func TestSelectors(t *testing.T) {
	for _, c := range allCases(t) {
		documents := mustRender(t, c.values)
		set := decodeAll[apps.DaemonSet](t, documents)[0]
		pod := set.Spec.Template
		pods := map[string]core.PodTemplateSpec{set.Name: pod}
		for _, d := range decodeAll[apps.Deployment](t, documents) {
			pods[d.Name] = d.Spec.Template
		}
		ports := portsOf(pod)
		// check checks that the selector of an object matches only the pods of its name.
		check := func(kind, name string, selector map[string]string, port string) {
			for owner, template := range pods {
				labels := k8slabels.Set(template.Labels)
				if set, err := meta.LabelSelectorAsSelector(&meta.LabelSelector{MatchLabels: selector}); err != nil || set.Empty() || set.Matches(labels) != (owner == name) {
					t.Errorf("%s: the selector %v of the %s %s and the labels %v of %s", c.name, selector, kind, name, labels, owner)
				}
			}
			if port != "" && portsOf(pods[name])[port] == 0 {
				t.Errorf("%s: port %s of the %s is not in %v", c.name, port, kind, portsOf(pods[name]))
			}
		}
		check("DaemonSet", set.Name, set.Spec.Selector.MatchLabels, "")
		for _, d := range decodeAll[apps.Deployment](t, documents) {
			check("Deployment", d.Name, d.Spec.Selector.MatchLabels, "")
			checkControllerSelector(t, d.Spec.Template.Spec.Containers[0].Args, pod.Labels)
		}
		for _, s := range decodeAll[core.Service](t, documents) {
			check("Service", s.Name, s.Spec.Selector, s.Spec.Ports[0].TargetPort.String())
			for _, m := range decodeAll[monitoring.ServiceMonitor](t, documents) {
				if selector := k8slabels.SelectorFromSet(m.Spec.Selector.MatchLabels); !selector.Matches(k8slabels.Set(s.Labels)) {
					t.Errorf("%s: the ServiceMonitor's selector %v does not match %v", c.name, selector, s.Labels)
				}
			}
		}
		for _, p := range decodeAll[networking.NetworkPolicy](t, documents) {
			check("NetworkPolicy", p.Name, p.Spec.PodSelector.MatchLabels, p.Spec.Ingress[0].Ports[0].Port.String())
		}
		for _, m := range decodeAll[monitoring.PodMonitor](t, documents) {
			check("PodMonitor", m.Name, m.Spec.Selector.MatchLabels, *m.Spec.PodMetricsEndpoints[0].Port)
		}
		for _, m := range decodeAll[clusterPodMonitoring](t, documents) {
			check("ClusterPodMonitoring", set.Name, m.Spec.Selector.MatchLabels, m.Spec.Endpoints[0].Port)
		}
		for _, probe := range []*core.Probe{pod.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].ReadinessProbe} {
			if ports[probe.HTTPGet.Port.String()] == 0 {
				t.Errorf("%s: port %s of a probe is not in %v", c.name, probe.HTTPGet.Port.String(), ports)
			}
		}
	}
}

// portsOf returns the ports of a pod's first container by name.
func portsOf(pod core.PodTemplateSpec) map[string]int32 {
	ports := map[string]int32{}
	for _, port := range pod.Spec.Containers[0].Ports {
		ports[port.Name] = port.ContainerPort
	}
	return ports
}

// checkControllerSelector checks that the controller's flag --selector matches podgauge's pods.
func checkControllerSelector(t *testing.T, args []string, labels map[string]string) {
	t.Helper()
	for _, arg := range args {
		if text, found := strings.CutPrefix(arg, "--selector="); found {
			if selector, err := k8slabels.Parse(text); err != nil || selector.Empty() || !selector.Matches(k8slabels.Set(labels)) {
				t.Errorf("--selector=%s does not match podgauge's pods: %v, %v", text, labels, err)
			}
			return
		}
	}
	t.Errorf("the controller lacks --selector: %q", args)
}

// TestLint checks that helm lint only reports the missing icon.
func TestLint(t *testing.T) {
	for _, c := range allCases(t) {
		vals, err := mergeValues(c.values)
		require.NoError(t, err)
		for _, m := range lint.RunAll(chartDir, vals, "podgauge").Messages {
			if m.Severity > support.InfoSev || !strings.Contains(m.Err.Error(), "icon") {
				t.Errorf("%s: %v", c.name, m)
			}
		}
	}
}
