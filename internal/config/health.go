package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// HealthConfig has the policies of Xids. The precedence is Xids, Enabled, Ignored, and podgauge's table of Xids.
type HealthConfig struct {
	IgnoreAll bool                 // every Xid that is not in Enabled
	Ignored   []uint64             // sorted, unique
	EnableAll bool                 // every Xid, also application errors
	Enabled   []uint64             // sorted, unique
	Xids      map[uint64]XidPolicy // never XidDefault; nil if empty
}

// XidPolicy is an operator's policy for an Xid.
type XidPolicy uint8

// The policies. Files use the words of xidPolicyNames; XidDefault has no word.
const (
	XidDefault   XidPolicy = iota // as in the table of Xids
	XidIgnore                     // the Xid is counted
	XidWarn                       // the Xid is counted and recorded as an incident; the device stays healthy
	XidUnhealthy                  // the device is unhealthy until a reset
)

var xidPolicyNames = []string{XidIgnore: "ignore", XidWarn: "warn", XidUnhealthy: "unhealthy"}

func (p XidPolicy) String() string {
	if p == XidDefault || int(p) >= len(xidPolicyNames) {
		return "default"
	}
	return xidPolicyNames[p]
}

// Policy returns the policy of an Xid. An Xid in NVIDIA's list of ignored Xids is still recorded as an incident.
func (h HealthConfig) Policy(xid uint64) XidPolicy {
	p, found := h.Xids[xid]
	switch {
	case found:
		return p
	case h.EnableAll || slices.Contains(h.Enabled, xid):
		return XidUnhealthy
	case h.IgnoreAll || slices.Contains(h.Ignored, xid):
		return XidWarn
	}
	return XidDefault
}

// newHealthConfig parses the two lists. checkXid has accepted all items.
func newHealthConfig(ignored, enabled []string, xids map[uint64]XidPolicy) HealthConfig {
	h := HealthConfig{Xids: xids}
	h.IgnoreAll, h.Ignored = parseXids(ignored)
	h.EnableAll, h.Enabled = parseXids(enabled)
	return h
}

func parseXids(list []string) (all bool, xids []uint64) {
	for _, item := range list {
		if isAllXids(item) {
			return true, nil
		}
		if xid, err := strconv.ParseUint(item, 10, 64); err == nil {
			xids = append(xids, xid)
		}
	}
	slices.Sort(xids)
	return false, slices.Compact(xids)
}

// isAllXids reports whether s means all Xids. NVIDIA has two words.
func isAllXids(s string) bool { return strings.EqualFold(s, "all") || strings.EqualFold(s, "xids") }

// checkXid accepts an Xid or all. Xid 0 is rejected, because NVIDIA's plugin takes 0 for all Xids.
func checkXid(s string) error {
	if xid, err := strconv.ParseUint(s, 10, 64); isAllXids(s) || err == nil && xid > 0 {
		return nil
	}
	return fmt.Errorf("%q: want the number of an Xid, or all", s)
}
