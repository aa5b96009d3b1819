package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// GivenSetting is a setting of a flag, a variable or the file, in words.
type GivenSetting struct{ Name, Value, Origin string }

// Summary returns the settings that are not defaults.
func (l Loaded) Summary() (given []GivenSetting) {
	for _, s := range settingsOf(&l.Settings, &l.location) {
		if origin := l.Origins[s.name()]; origin != "" {
			given = append(given, GivenSetting{s.name(), cmp.Or(s.text(), "none"), origin})
		}
	}
	return given
}

func (s SharingMethod) String() string { return joinAll(s.Resources) }

func (p XidPolicies) String() string {
	var words []string
	for _, xid := range slices.Sorted(maps.Keys(p)) {
		words = append(words, fmt.Sprintf("%d %s", xid, policyNames[p[xid]]))
	}
	return joinAll(words)
}

func (r SharedResource) String() string {
	devices := "each device"
	switch {
	case len(r.Devices.List) > 0:
		devices = "each of " + joinAll(r.Devices.List)
	case r.Devices.Count > 0:
		devices = fmt.Sprintf("each of the first %d", r.Devices.Count)
	}
	return fmt.Sprintf("%s: %d replicas of %s as %s", r.Name, r.Replicas, devices, cmp.Or(r.Rename, r.Name))
}

func (p namePatterns) String() string { return joinAll(p) }

func (p NamePattern) String() string { return p.Pattern + " as " + p.Name }
