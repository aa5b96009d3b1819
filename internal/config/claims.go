package config

import (
	"fmt"
	"slices"
	"strings"
)

// ClaimsConfig configures how resource claims (Dynamic Resource Allocation) count as
// allocations. The PodResources API does not show whether a claim has admin access.
type ClaimsConfig struct {
	Ignore         []ClaimPattern
	ReserveDevices bool // the device plugin offers no claimed device
}

// Ignores reports whether a claim is not an allocation of its devices.
func (c ClaimsConfig) Ignores(namespace, name, driver string) bool {
	return slices.ContainsFunc(c.Ignore, func(p ClaimPattern) bool { return p.matches(namespace, name, driver) })
}

// ClaimPattern selects claims by globs over namespace, name and driver.
type ClaimPattern struct{ Namespace, Name, Driver string }

// ParseClaimPattern reads NAMESPACE/NAME, which means any driver, or
// NAMESPACE/NAME/DRIVER.
func ParseClaimPattern(s string) (ClaimPattern, error) {
	parts := strings.Split(s, "/")
	if len(parts) == 2 {
		parts = append(parts, "*")
	}
	valid := func(part string) bool {
		return part != "" && !strings.ContainsFunc(part, func(r rune) bool { return r > 'z' || r != '*' && r != '.' && !isDomainPart(byte(r)) })
	}
	if len(parts) != 3 || !valid(parts[0]) || !valid(parts[1]) || !valid(parts[2]) {
		return ClaimPattern{}, fmt.Errorf("%q: want NAMESPACE/NAME or NAMESPACE/NAME/DRIVER of claims, with * for any characters", s)
	}
	return ClaimPattern{parts[0], parts[1], parts[2]}, nil
}

func (p ClaimPattern) matches(namespace, name, driver string) bool {
	return matchGlob(p.Namespace, namespace) && matchGlob(p.Name, name) && matchGlob(p.Driver, driver)
}
