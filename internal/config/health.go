package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// HealthConfig says which Xids make a device unhealthy. What is said of a single Xid beats
// what is enabled, which beats what is ignored, which beats the table of Xids that this
// program comes with.
type HealthConfig struct {
	IgnoreAll bool                 // every Xid that is not in Enabled
	Ignored   []uint64             // sorted, each once
	EnableAll bool                 // every Xid, also those that are an application's fault
	Enabled   []uint64             // sorted, each once
	Xids      map[uint64]XidPolicy // of single ones, never Default; nil where there are none
}

// XidPolicy is what an operator wants of an Xid.
type XidPolicy uint8

// The policies, by what they are called in a file. The zero Policy is what nobody has
// changed, and is called nothing.
const (
	XidDefault   XidPolicy = iota // as the table of Xids says
	XidIgnore                     // "ignore": it is counted, and nothing else
	XidWarn                       // "warn": it is counted and told, and leaves the device healthy
	XidUnhealthy                  // "unhealthy": it makes the device unhealthy until a reset was seen
)

// xidPolicyNames are the words of a file.
var xidPolicyNames = []string{XidIgnore: "ignore", XidWarn: "warn", XidUnhealthy: "unhealthy"}

func (p XidPolicy) String() string {
	if p == XidDefault || int(p) >= len(xidPolicyNames) {
		return "default"
	}
	return xidPolicyNames[p]
}

// Policy is that of an Xid. NVIDIA's lists leave a device healthy and say no more, so an
// Xid in them is still told.
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

// Disabled tells whether no Xid at all can make a device unhealthy.
func (h HealthConfig) Disabled() bool {
	for _, p := range h.Xids {
		if p == XidUnhealthy {
			return false
		}
	}
	return h.IgnoreAll && !h.EnableAll && len(h.Enabled) == 0
}

// readXids reads podgauge.xids: a mapping of Xids to what is to become of them.
func readXids(dst *map[uint64]XidPolicy, n *node, path string) error {
	if n.kind != yaml.MappingNode {
		return newParseError(n.line, "want a mapping of Xids")
	}
	policies := map[uint64]XidPolicy{}
	for _, e := range n.entries {
		at := path + "." + e.key
		xid, err := strconv.ParseUint(e.key, 10, 64)
		switch {
		case err != nil || xid == 0:
			return withPath(at, e.value, newParseError(e.line, "want the number of an Xid"))
		case e.value.null():
			continue
		case policies[xid] != XidDefault:
			return withPath(at, e.value, newParseError(e.line, "Xid %d was given before", xid))
		}
		word, err := e.value.word()
		if err != nil {
			return withPath(at, e.value, err)
		}
		p := slices.Index(xidPolicyNames, word)
		if p <= int(XidDefault) {
			return withPath(at, e.value, newParseError(e.value.line, "%q: want %s", word, joinOr(xidPolicyNames[XidIgnore:])))
		}
		policies[xid] = XidPolicy(p)
	}
	if len(policies) > 0 {
		*dst = policies
	}
	return nil
}

// newHealthConfig reads the two lists. Both were checked.
func newHealthConfig(ignored, enabled []string, single map[uint64]XidPolicy) HealthConfig {
	h := HealthConfig{Xids: single}
	h.IgnoreAll, h.Ignored = parseXids(ignored)
	h.EnableAll, h.Enabled = parseXids(enabled)
	return h
}

// parseXids reads a list of Xids, in which NVIDIA has two words for all of them.
func parseXids(list []string) (all bool, numbers []uint64) {
	for _, item := range list {
		if isAllXids(item) {
			return true, nil
		}
		if xid, err := strconv.ParseUint(item, 10, 64); err == nil {
			numbers = append(numbers, xid)
		}
	}
	slices.Sort(numbers)
	return false, slices.Compact(numbers)
}

func isAllXids(s string) bool { return strings.EqualFold(s, "all") || strings.EqualFold(s, "xids") }

// checkXid also refuses 0, which is no Xid, and which NVIDIA's plugin takes for
// all of them.
func checkXid(s string) error {
	if xid, err := strconv.ParseUint(s, 10, 64); isAllXids(s) || err == nil && xid > 0 {
		return nil
	}
	return fmt.Errorf("%q: want the number of an Xid, or all", s)
}
