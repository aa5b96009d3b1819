package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"go.yaml.in/yaml/v3"
)

// HealthConfig has the policies of Xids. The precedence is Xids, Enabled,
// Ignored, and podgauge's table of Xids.
type HealthConfig struct {
	Ignored []string // Xids, or all
	Enabled []string // Xids, or all: application errors too
	Xids    XidPolicies
}

// policyNames are the words of a file.
var policyNames = []string{
	device.PolicyIgnore:    "ignore",
	device.PolicyWarn:      "warn",
	device.PolicyUnhealthy: "unhealthy",
}

// XidPolicies are the policies of single Xids; nil if empty.
type XidPolicies map[uint64]device.Policy

// UnmarshalYAML reads a mapping of Xids to words.
func (p *XidPolicies) UnmarshalYAML(n *yaml.Node) error {
	var words map[string]string
	if err := n.Decode(&words); err != nil || len(words) == 0 {
		return err
	}
	*p = XidPolicies{}
	for key, word := range words {
		xid, err := strconv.ParseUint(key, 10, 64)
		policy := slices.Index(policyNames, word)
		switch {
		case err != nil || xid == 0 || strconv.FormatUint(xid, 10) != key:
			return fmt.Errorf("%q: expected the number of an Xid", key)
		case policy < 0:
			return fmt.Errorf("%s: %q: expected %s", key, word, joinOr(policyNames[device.PolicyIgnore:]))
		case policy > 0:
			(*p)[xid] = device.Policy(policy)
		}
	}
	return nil
}

// Policy returns the policy of an Xid. An Xid in NVIDIA's list of ignored Xids
// is still recorded as an incident.
func (h HealthConfig) Policy(xid uint64) device.Policy {
	p, found := h.Xids[xid]
	switch {
	case found:
		return p
	case listsXid(h.Enabled, xid):
		return device.PolicyUnhealthy
	case listsXid(h.Ignored, xid):
		return device.PolicyWarn
	}
	return device.PolicyDefault
}

func listsXid(list []string, xid uint64) bool {
	return slices.Contains(list, "all") || slices.Contains(list, strconv.FormatUint(xid, 10))
}

// parseXid accepts an Xid or all, for which NVIDIA has two words. Xid 0 is
// rejected, because NVIDIA's plugin takes 0 for all Xids.
func parseXid(s string) (string, error) {
	if strings.EqualFold(s, "all") || strings.EqualFold(s, "xids") {
		return "all", nil
	}
	if xid, err := strconv.ParseUint(s, 10, 64); err == nil && xid > 0 {
		return strconv.FormatUint(xid, 10), nil
	}
	return "", fmt.Errorf("%q: expected the number of an Xid, or all", s)
}
