package config

import (
	"fmt"
	"strings"
)

// defaultDomain is what resource names are in that have none.
const defaultDomain = "nvidia.com/"

// GPUResource is what whole GPUs are offered as unless a pattern says otherwise.
const GPUResource = defaultDomain + "gpu"

// ResourceNames rename what is offered.
type ResourceNames struct {
	GPUs []NamePattern // over the GPU's model
	MIGs []NamePattern // over the slice's profile
}

// NamePattern gives what matches a glob a resource name.
type NamePattern struct{ Pattern, Name string }

// GPU is the resource that a whole GPU of this model is offered as. The first
// pattern that matches holds.
func (r ResourceNames) GPU(model string) string { return firstMatch(r.GPUs, model, GPUResource) }

// MIG is the resource that a slice of this profile ("1g.10gb", "1g.10gb+me") is
// offered as under a MIG strategy; none offers no slices, and the answer is "".
func (r ResourceNames) MIG(strategy, profile string) string {
	switch strategy {
	case MIGSingle:
		return firstMatch(r.MIGs, profile, GPUResource)
	case MIGMixed:
		return firstMatch(r.MIGs, profile, MIGResource(profile))
	}
	return ""
}

func firstMatch(patterns []NamePattern, s, fallback string) string {
	for _, p := range patterns {
		if matchGlob(p.Pattern, s) {
			return p.Name
		}
	}
	return fallback
}

// MIGResource is what NVIDIA calls the resource of a profile under the strategy
// mixed: a + cannot be in a resource name, so "1g.10gb+me" is
// "nvidia.com/mig-1g.10gb.me". A slice that has only some of its GPU instance's
// compute ("1c.3g.20gb") has a name of its own too.
func MIGResource(profile string) string {
	return defaultDomain + "mig-" + strings.NewReplacer("+", ".", ",", ".").Replace(profile)
}

// resourceName puts a name that has no domain into NVIDIA's, and checks it.
func resourceName(name string) (string, error) {
	if name != "" && !strings.Contains(name, "/") {
		name = defaultDomain + name
	}
	return name, CheckResourceName(name)
}

// CheckResourceName says why the kubelet would refuse to register a resource
// under this name. The rule is IsExtendedResourceName of
// k8s.io/kubernetes/pkg/apis/core/v1/helper.
func CheckResourceName(name string) error {
	prefix, rest, ok := strings.Cut(name, "/")
	switch {
	case !ok || prefix == "" || rest == "":
		return fmt.Errorf("%q: want a resource name such as nvidia.com/gpu", name)
	case strings.Contains(name, "kubernetes.io/"):
		return fmt.Errorf("%q: kubernetes.io is reserved", name)
	case strings.HasPrefix(name, "requests."):
		return fmt.Errorf("%q: requests. is reserved", name)
	case len("requests.")+len(prefix) > 253 || !isSubdomain(prefix):
		return fmt.Errorf("%q: %q is no domain name", name, prefix)
	case len(rest) > 63:
		return fmt.Errorf("%q: more than 63 characters after the /", name)
	case !isLabel(rest, isNamePart):
		return fmt.Errorf("%q: want letters, digits, -, _ and . after the /, beginning and ending with a letter or digit", name)
	}
	return nil
}

func isSubdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label, isDomainPart) {
			return false
		}
	}
	return true
}

// isLabel tells whether s is of these characters, with a letter or digit at both
// ends.
func isLabel(s string, part func(byte) bool) bool {
	if s == "" || strings.ContainsRune("-_.", rune(s[0])) || strings.ContainsRune("-_.", rune(s[len(s)-1])) {
		return false
	}
	for i := range len(s) {
		if !part(s[i]) {
			return false
		}
	}
	return true
}

func isDomainPart(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' }

func isNamePart(c byte) bool {
	return isDomainPart(c) || 'A' <= c && c <= 'Z' || c == '_' || c == '.'
}
