package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Health says which Xids make a device unhealthy. What is enabled beats what is
// ignored, which beats the table of Xids that this program comes with.
type Health struct {
	IgnoreAll bool     // every Xid that is not in Enabled
	Ignored   []uint64 // sorted, each once
	EnableAll bool     // every Xid, also those that are an application's fault
	Enabled   []uint64 // sorted, each once
}

// Off tells whether no Xid at all can make a device unhealthy.
func (h Health) Off() bool { return h.IgnoreAll && !h.EnableAll && len(h.Enabled) == 0 }

// Counts tells whether an Xid makes a device unhealthy, which byDefault it does
// or does not.
func (h Health) Counts(xid uint64, byDefault bool) bool {
	switch {
	case h.EnableAll || slices.Contains(h.Enabled, xid):
		return true
	case h.IgnoreAll || slices.Contains(h.Ignored, xid):
		return false
	}
	return byDefault
}

// health reads the two lists. Both were checked.
func health(ignored, enabled []string) Health {
	var h Health
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
