package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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

// policyPattern matches the text of a policy.
var policyPattern = regexp.MustCompile(
	`^(?:ignore|warn|unhealthy(?: at ([2-9]|[1-9][0-9]|100) in ([1-9][0-9]{0,2}[mh]))?)$`)

const policyForms = "ignore, warn, unhealthy or, with a threshold, unhealthy at 3 in 24h"

// XidPolicies are the policies of single Xids; nil if empty.
type XidPolicies map[uint64]device.XidPolicy

// UnmarshalYAML reads a mapping of Xids to policies.
func (p *XidPolicies) UnmarshalYAML(n *yaml.Node) error {
	var words map[string]string
	if err := n.Decode(&words); err != nil || len(words) == 0 {
		return err
	}
	*p = XidPolicies{}
	for key, word := range words {
		xid, err := strconv.ParseUint(key, 10, 64)
		found := policyPattern.FindStringSubmatch(word)
		switch {
		case err != nil || xid == 0 || strconv.FormatUint(xid, 10) != key:
			return fmt.Errorf("%q: expected the number of an Xid", key)
		case word == "":
		case found == nil:
			return fmt.Errorf("%s: %q: expected %s", key, word, policyForms)
		default:
			name, _, _ := strings.Cut(word, " ")
			policy := device.XidPolicy{Policy: device.Policy(slices.Index(policyNames, name))}
			policy.Count, _ = strconv.Atoi(found[1]) // the pattern bounds both
			policy.Window, _ = time.ParseDuration(found[2])
			(*p)[xid] = policy
		}
	}
	return nil
}

// Policy returns the policy of an Xid. Below a threshold, the lists apply. An Xid in NVIDIA's list of ignored Xids
// is still recorded as an incident.
func (h HealthConfig) Policy(xid uint64) device.XidPolicy {
	byLists := device.PolicyDefault
	switch {
	case listsXid(h.Enabled, xid):
		byLists = device.PolicyUnhealthy
	case listsXid(h.Ignored, xid):
		byLists = device.PolicyWarn
	}
	if p, found := h.Xids[xid]; found {
		p.Below = byLists
		return p
	}
	return device.XidPolicy{Policy: byLists}
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
