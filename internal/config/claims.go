package config

import (
	"fmt"
	"regexp"
	"slices"
)

// ClaimsConfig configures how resource claims (Dynamic Resource Allocation)
// count as allocations. The PodResources API does not show whether a claim has
// admin access.
type ClaimsConfig struct {
	Ignore         []ClaimPattern
	ReserveDevices bool // claimed devices are unhealthy in the device plugin's list
}

// Ignores reports whether a claim is not an allocation of its devices.
func (c ClaimsConfig) Ignores(namespace, name, driver string) bool {
	claim := namespace + "/" + name + "/" + driver
	return slices.ContainsFunc(c.Ignore, func(p ClaimPattern) bool { return matchGlob(string(p), claim) })
}

// ClaimPattern selects claims by a glob over NAMESPACE/NAME/DRIVER.
type ClaimPattern string

var claimPattern = regexp.MustCompile(`^([a-z0-9.*-]+)/([a-z0-9.*-]+)(?:/([a-z0-9.*-]+))?$`)

// ParseClaimPattern parses NAMESPACE/NAME, which means any driver, or
// NAMESPACE/NAME/DRIVER.
func ParseClaimPattern(s string) (ClaimPattern, error) {
	parts := claimPattern.FindStringSubmatch(s)
	if parts == nil {
		return "", fmt.Errorf("%q: expected NAMESPACE/NAME or NAMESPACE/NAME/DRIVER of claims, "+
			"with * for any characters", s)
	}
	if parts[3] == "" {
		s += "/*"
	}
	return ClaimPattern(s), nil
}
