package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// defaultDomain is the default domain of resource names.
const defaultDomain = "nvidia.com/"

// GPUResource is the default resource of whole GPUs.
const GPUResource = defaultDomain + "gpu"

// MIG strategies: the resources of a MIG-enabled GPU.
const (
	MIGNone   = "none"   // no resource: a MIG-enabled GPU is not advertised
	MIGSingle = "single" // its MIG devices, under the name of whole GPUs
	MIGMixed  = "mixed"  // its MIG devices, under a name for each profile
)

// ResourceNames rename resources. The first match counts.
type ResourceNames struct {
	GPUs namePatterns // over the GPU's model
	MIGs namePatterns // over the MIG device's profile
}

type namePatterns []NamePattern

// NamePattern gives a resource name to all models or profiles of a glob.
type NamePattern struct{ Pattern, Name string }

// UnmarshalYAML reads a pattern of a list.
func (p *NamePattern) UnmarshalYAML(n *yaml.Node) error {
	type plain NamePattern
	if err := n.Decode((*plain)(p)); err != nil {
		return err
	}
	err := completeName(&p.Name)
	if p.Pattern == "" {
		err = errors.New("no pattern")
	}
	return lineError(n, err)
}

// GPU returns the resource of a whole GPU of this model.
func (r ResourceNames) GPU(model string) string { return firstMatch(r.GPUs, model, GPUResource) }

// MIG returns the resource of a MIG device of this profile ("1g.10gb",
// "1g.10gb+me"); empty under the strategy none.
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

// MIGResource returns NVIDIA's resource name of a profile under the strategy
// mixed: "nvidia.com/mig-1g.10gb.me" for "1g.10gb+me", because a resource name
// cannot contain a +. A compute instance smaller than the GPU instance has a
// different name ("1c.3g.20gb").
func MIGResource(profile string) string {
	return defaultDomain + "mig-" + strings.NewReplacer("+", ".", ",", ".").Replace(profile)
}

// completeName adds NVIDIA's domain to a name without a domain, and checks the
// name.
func completeName(name *string) error {
	if *name != "" && !strings.Contains(*name, "/") {
		*name = defaultDomain + *name
	}
	return CheckResourceName(*name)
}

var (
	domainName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	localName  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
)

// CheckResourceName returns an error if the kubelet rejects a resource name.
// The rule is IsExtendedResourceName of
// k8s.io/kubernetes/pkg/apis/core/v1/helper.
func CheckResourceName(name string) error {
	domain, local, _ := strings.Cut(name, "/")
	switch {
	case strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "requests."):
		return fmt.Errorf("%q: kubernetes.io and requests. are reserved", name)
	case len("requests.")+len(domain) > 253 || !domainName.MatchString(domain):
		return fmt.Errorf("%q: expected a domain name before the /, as in nvidia.com/gpu", name)
	case len(local) > 63 || !localName.MatchString(local):
		return fmt.Errorf("%q: expected up to 63 letters, digits, -, _ and . after the /, "+
			"beginning and ending with a letter or digit", name)
	}
	return nil
}
