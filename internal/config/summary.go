package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// GivenSetting is a setting of a flag, a variable or the file, in words.
type GivenSetting struct{ Name, Value, Origin string }

// Summary returns the settings that are not defaults.
func (l Loaded) Summary() (given []GivenSetting) {
	t := loadState{Settings: l.Settings, location: l.location}
	for i := range allSettings {
		s := &allSettings[i]
		if origin := l.Origins[s.name()]; origin != "" {
			given = append(given, GivenSetting{s.name(), cmp.Or(valueText(s.field(&t)), "none"), origin})
		}
	}
	return given
}

// valueText returns the value of a field of Settings.
func valueText(field any) string {
	switch v := field.(type) {
	case *SharingMethod:
		return valueText(&v.Resources)
	case *XidPolicies:
		var words []string
		for _, xid := range slices.Sorted(maps.Keys(*v)) {
			words = append(words, fmt.Sprintf("%d %s", xid, policyNames[(*v)[xid]]))
		}
		return strings.Join(words, ", ")
	}
	value := reflect.ValueOf(field).Elem()
	if value.Kind() != reflect.Slice {
		return fmt.Sprint(value)
	}
	words := make([]string, value.Len())
	for i := range words {
		words[i] = fmt.Sprint(value.Index(i))
	}
	return strings.Join(words, ", ")
}

func (r SharedResource) String() string {
	devices := "each device"
	switch {
	case len(r.Devices.List) > 0:
		devices = "each of " + valueText(&r.Devices.List)
	case r.Devices.Count > 0:
		devices = fmt.Sprintf("each of the first %d", r.Devices.Count)
	}
	return fmt.Sprintf("%s: %d replicas of %s as %s", r.Name, r.Replicas, devices, cmp.Or(r.Rename, r.Name))
}

func (p NamePattern) String() string { return p.Pattern + " as " + p.Name }

func (p ClaimPattern) String() string { return p.Namespace + "/" + p.Name + "/" + p.Driver }
