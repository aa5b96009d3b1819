package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
)

// ClaimsConfig configures how resource claims (Dynamic Resource Allocation) count as allocations. The PodResources API does not
// show whether a claim has admin access.
type ClaimsConfig struct {
	Ignore         []ClaimPattern
	ReserveDevices bool // claimed devices are unhealthy in the device plugin's list
}

// Ignores reports whether a claim is not an allocation of its devices.
func (c ClaimsConfig) Ignores(namespace, name, driver string) bool {
	return slices.ContainsFunc(c.Ignore, func(p ClaimPattern) bool {
		return matchGlob(p.Namespace, namespace) && matchGlob(p.Name, name) && matchGlob(p.Driver, driver)
	})
}

// ClaimPattern selects claims by globs over namespace, name and driver.
type ClaimPattern struct{ Namespace, Name, Driver string }

var claimPattern = regexp.MustCompile(`^([a-z0-9.*-]+)/([a-z0-9.*-]+)(?:/([a-z0-9.*-]+))?$`)

// ParseClaimPattern parses NAMESPACE/NAME, which means any driver, or NAMESPACE/NAME/DRIVER.
func ParseClaimPattern(s string) (ClaimPattern, error) {
	parts := claimPattern.FindStringSubmatch(s)
	if parts == nil {
		return ClaimPattern{}, fmt.Errorf("%q: expected NAMESPACE/NAME or NAMESPACE/NAME/DRIVER of claims, with * for any characters", s)
	}
	return ClaimPattern{parts[1], parts[2], cmp.Or(parts[3], "*")}, nil
}
