package api

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
)

// maxQueryBytes bounds the parameters. Names of pods have at most 253 bytes.
const maxQueryBytes = 4096

// Limits of the incidents in a response.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Query selects devices, allocations or incidents. The zero value of a field
// matches all.
type Query struct {
	Device         string // UUID of a device, or UUID or index of a GPU, for its MIG devices as well
	Namespace, Pod string
	Reason         string
	Since          time.Time
	Limit          int // at least 1 after ParseQuery
}

// ParseQuery parses the parameters of a URL.
func ParseQuery(raw string, allowed []string, now time.Time) (q Query, err error) {
	p, err := ParseParameters(raw, allowed)
	if err != nil {
		return q, err
	}
	q = Query{
		Device: p["device"], Namespace: p["namespace"], Pod: p["pod"], Reason: p["reason"], Limit: DefaultLimit,
	}
	if value, ok := p["limit"]; ok {
		if q.Limit, err = strconv.Atoi(value); err != nil || q.Limit < 1 || q.Limit > MaxLimit {
			return q, fmt.Errorf("limit %q: expected a number from 1 to %d", value, MaxLimit)
		}
	}
	if value, ok := p["since"]; ok {
		q.Since, err = parseSince(value, now)
	}
	return q, err
}

// ParseParameters returns the values of a URL's parameters. It rejects unknown
// names: a typing error must not select everything.
func ParseParameters(raw string, allowed []string) (map[string]string, error) {
	if len(raw) > maxQueryBytes {
		return nil, fmt.Errorf("parameters of %d bytes: expected at most %d", len(raw), maxQueryBytes)
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fmt.Errorf("parse parameters: %w", err)
	}
	parameters := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(allowed, name):
			expected := cmp.Or(strings.Join(allowed, ", "), "none")
			return nil, fmt.Errorf("unknown parameter %q: expected %s", name, expected)
		case len(v) > 1:
			return nil, fmt.Errorf("%s is given %d times", name, len(v))
		case name == "watch" && (v[0] == "" || v[0] == "true"):
		case name == "watch":
			return nil, fmt.Errorf("watch %q: expected true or no value", v[0])
		case v[0] == "":
			return nil, fmt.Errorf("%s %q: expected a value", name, v[0])
		default:
			parameters[name] = v[0]
		}
	}
	return parameters, nil
}

// parseSince parses a time, or a duration before now.
func parseSince(value string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return at, nil
	}
	ago, err := time.ParseDuration(value)
	if err != nil || ago < 0 {
		const expected = "expected a time (2006-01-02T15:04:05Z) or a duration (90m, 24h)"
		return time.Time{}, fmt.Errorf("since %q: %s", value, expected)
	}
	return now.Add(-ago), nil
}

// resolveIndex replaces the index of a GPU by the UUID: the index of an incident
// is that of its time. A gone GPU may have the index of its replacement.
func (q Query) resolveIndex(statuses []device.Status) Query {
	resolved := q
	for _, s := range statuses {
		if q.Device == strconv.Itoa(s.Index) && (!s.Gone || resolved.Device == q.Device) {
			resolved.Device = string(s.GPU)
		}
	}
	return resolved
}

// matchesDevice reports whether the query selects a device, after resolveIndex.
func (q Query) matchesDevice(id device.ID, gpu device.GPU) bool {
	return q.Device == "" || q.Device == string(id) || q.Device == string(gpu)
}

func (q Query) matchesPod(namespace, pod string) bool {
	return (q.Namespace == "" || q.Namespace == namespace) && (q.Pod == "" || q.Pod == pod)
}

// matchesIncident reports whether the query selects an incident: also by MIG
// devices, and by the index of a removed GPU.
func (q Query) matchesIncident(i *incident.Incident) bool {
	isDevice := q.matchesDevice(i.Device, i.GPU) || i.Concerns(device.ID(q.Device)) || q.Device == strconv.Itoa(i.Index)
	if !isDevice || q.Reason != "" && q.Reason != i.Reason || i.Last.Before(q.Since) {
		return false
	}
	affects := func(c incident.AffectedContainer) bool { return q.matchesPod(c.Namespace, c.Pod) }
	return q.matchesPod("", "") || slices.ContainsFunc(i.Affected, affects)
}
