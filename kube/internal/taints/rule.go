package taints

import (
	"crypto/sha256"
	"fmt"

	"github.com/podgauge/podgauge/internal/device"
	resource "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// The labels and annotations of a rule.
const (
	managedBy = "app.kubernetes.io/managed-by"
	manager   = "podgauge-kube"
	// nodeName is a label, and an annotation because the name of a node may be
	// longer than the value of a label.
	nodeName   = "podgauge.io/node"
	deviceUUID = "podgauge.io/device" // annotation
)

const byNode = "node"

// indexByNode returns the node of a rule.
func indexByNode(object any) ([]string, error) {
	return []string{object.(*unstructured.Unstructured).GetAnnotations()[nodeName]}, nil
}

// newRule returns the rule of a published device. The name is the same in every
// process.
func newRule(node string, id device.ID, p publishedDevice, taint resource.DeviceTaint) *resource.DeviceTaintRule {
	hash := func(text string) []byte {
		sum := sha256.Sum256([]byte(text))
		return sum[:5]
	}
	return &resource.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("podgauge-%x-%x", hash(node), hash(p.driver+"/"+p.pool+"/"+p.name)),
			Labels:      map[string]string{managedBy: manager, nodeName: labelValue(node)},
			Annotations: map[string]string{nodeName: node, deviceUUID: string(id)},
		},
		Spec: resource.DeviceTaintRuleSpec{
			DeviceSelector: &resource.DeviceTaintSelector{Driver: &p.driver, Pool: &p.pool, Device: &p.name},
			Taint:          taint,
		},
	}
}

// session has the rules in a version of the API server. The versions differ in
// fields that Taints does not use.
type session struct {
	version schema.GroupVersion
	rules   dynamic.ResourceInterface
	known   cache.Indexer // rules with podgauge-kube's label; by the index byNode
}

// rulesOf returns the known rules of a node, by name.
func (s *session) rulesOf(node string) (map[string]*resource.DeviceTaintRule, error) {
	objects, err := s.known.ByIndex(byNode, node)
	rules := map[string]*resource.DeviceTaintRule{}
	for _, o := range objects {
		var rule resource.DeviceTaintRule
		object := o.(*unstructured.Unstructured)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &rule); err != nil {
			return nil, fmt.Errorf("decode device taint rule %s: %w", object.GetName(), err)
		}
		rules[rule.Name] = &rule
	}
	return rules, err
}

// encode returns a rule in the API server's version.
func (s *session) encode(rule *resource.DeviceTaintRule) (*unstructured.Unstructured, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(rule)
	if err != nil {
		return nil, fmt.Errorf("encode device taint rule %s: %w", rule.Name, err)
	}
	o := &unstructured.Unstructured{Object: object}
	o.SetGroupVersionKind(s.version.WithKind("DeviceTaintRule"))
	return o, nil
}
