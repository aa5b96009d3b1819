package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Health says which Xids make a device unhealthy. What is said of a single Xid beats
// what is enabled, which beats what is ignored, which beats the table of Xids that this
// program comes with.
type Health struct {
	IgnoreAll bool              // every Xid that is not in Enabled
	Ignored   []uint64          // sorted, each once
	EnableAll bool              // every Xid, also those that are an application's fault
	Enabled   []uint64          // sorted, each once
	Xids      map[uint64]Policy // of single ones, never Default; nil where there are none
}

// Policy is what an operator wants of an Xid.
type Policy uint8

// The policies, by what they are called in a file. The zero Policy is what nobody has
// changed, and is called nothing.
const (
	Default   Policy = iota // as the table of Xids says
	Ignore                  // "ignore": it is counted, and nothing else
	Warn                    // "warn": it is counted and told, and leaves the device healthy
	Unhealthy               // "unhealthy": it makes the device unhealthy until a reset was seen
)

// policyNames are the words of a file.
var policyNames = []string{Ignore: "ignore", Warn: "warn", Unhealthy: "unhealthy"}

func (p Policy) String() string {
	if p == Default || int(p) >= len(policyNames) {
		return "default"
	}
	return policyNames[p]
}

// Policy is that of an Xid. NVIDIA's lists leave a device healthy and say no more, so an
// Xid in them is still told.
func (h Health) Policy(xid uint64) Policy {
	p, own := h.Xids[xid]
	switch {
	case own:
		return p
	case h.EnableAll || slices.Contains(h.Enabled, xid):
		return Unhealthy
	case h.IgnoreAll || slices.Contains(h.Ignored, xid):
		return Warn
	}
	return Default
}

// Off tells whether no Xid at all can make a device unhealthy.
func (h Health) Off() bool {
	for _, p := range h.Xids {
		if p == Unhealthy {
			return false
		}
	}
	return h.IgnoreAll && !h.EnableAll && len(h.Enabled) == 0
}

// readXids reads podgauge.xids: a mapping of Xids to what is to become of them.
func readXids(dst *map[uint64]Policy, n *node, path string) error {
	if n.kind != yaml.MappingNode {
		return wrong(n.line, "want a mapping of Xids")
	}
	policies := map[uint64]Policy{}
	for _, e := range n.entries {
		at := path + "." + e.key
		xid, err := strconv.ParseUint(e.key, 10, 64)
		switch {
		case err != nil || xid == 0:
			return under(at, e.value, wrong(e.line, "want the number of an Xid"))
		case e.value.null():
			continue
		case policies[xid] != Default:
			return under(at, e.value, wrong(e.line, "Xid %d was given before", xid))
		}
		word, err := e.value.word()
		if err != nil {
			return under(at, e.value, err)
		}
		p := slices.Index(policyNames, word)
		if p <= int(Default) {
			return under(at, e.value, wrong(e.value.line, "%q: want %s", word, or(policyNames[Ignore:])))
		}
		policies[xid] = Policy(p)
	}
	if len(policies) > 0 {
		*dst = policies
	}
	return nil
}

// health reads the two lists. Both were checked.
func health(ignored, enabled []string, single map[uint64]Policy) Health {
	h := Health{Xids: single}
	h.IgnoreAll, h.Ignored = xids(ignored)
	h.EnableAll, h.Enabled = xids(enabled)
	return h
}

// xids reads a list of Xids, in which NVIDIA has two words for all of them.
func xids(list []string) (all bool, numbers []uint64) {
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
