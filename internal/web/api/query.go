package api

import (
	"cmp"
	"errors"
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

// Query selects devices, allocations or incidents. The zero value of a field matches all.
type Query struct {
	Device         string // UUID of a device, or UUID or index of a GPU, for its MIG devices as well
	Namespace, Pod string
	Reason         string
	State          string // of devices on the status page
	Since          time.Time
	Limit          int // at least 1 after ParseQuery
}

// ParseQuery parses the parameters of a URL. It rejects unknown names: a typing error must not select everything.
func ParseQuery(raw string, params []string, now time.Time) (Query, error) {
	q := Query{Limit: DefaultLimit}
	if len(raw) > maxQueryBytes {
		return q, fmt.Errorf("parameters of %d bytes: expected at most %d", len(raw), maxQueryBytes)
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, fmt.Errorf("parse parameters: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(params, name):
			return q, fmt.Errorf("unknown parameter %q: expected %s", name, cmp.Or(strings.Join(params, ", "), "none"))
		case len(v) > 1:
			return q, fmt.Errorf("%s is given %d times", name, len(v))
		default:
			if err := q.set(name, v[0], now); err != nil {
				return q, fmt.Errorf("%s %q: %w", name, v[0], err)
			}
		}
	}
	return q, nil
}

func (q *Query) set(name, value string, now time.Time) (err error) {
	switch {
	case value == "":
		return errors.New("expected a value")
	case name == "since":
		q.Since, err = parseSince(value, now)
	case name == "limit":
		if q.Limit, err = strconv.Atoi(value); err != nil || q.Limit < 1 || q.Limit > MaxLimit {
			err = fmt.Errorf("expected a number from 1 to %d", MaxLimit)
		}
	default:
		*map[string]*string{"device": &q.Device, "namespace": &q.Namespace, "pod": &q.Pod, "reason": &q.Reason, "state": &q.State}[name] = value
	}
	return err
}

// parseSince parses a time, or a duration before now.
func parseSince(value string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return at, nil
	}
	ago, err := time.ParseDuration(value)
	if err != nil || ago < 0 {
		return time.Time{}, errors.New("expected a time (2006-01-02T15:04:05Z) or a duration (90m, 24h)")
	}
	return now.Add(-ago), nil
}

// resolveIndex replaces the current index of a GPU by the UUID: the index of an incident is that of its time.
func (q Query) resolveIndex(statuses []device.Status) Query {
	for _, s := range statuses {
		if q.Device == strconv.Itoa(s.Index) && !s.Gone {
			q.Device = string(s.GPU)
		}
	}
	return q
}

// matchesDevice reports whether the query selects a device. Index is that of the GPU; -1: unknown.
func (q Query) matchesDevice(id device.ID, gpu device.GPU, index int) bool {
	return q.Device == "" || q.Device == string(id) || q.Device == string(gpu) || index >= 0 && q.Device == strconv.Itoa(index)
}

func (q Query) matchesPod(namespace, pod string) bool {
	return (q.Namespace == "" || q.Namespace == namespace) && (q.Pod == "" || q.Pod == pod)
}

func (q Query) matchesIncident(i *incident.Incident) bool {
	return (q.Reason == "" || q.Reason == i.Reason) && !i.Last.Before(q.Since) && (q.Namespace == "" && q.Pod == "" ||
		slices.ContainsFunc(i.Affected, func(a incident.AffectedContainer) bool { return q.matchesPod(a.Namespace, a.Pod) }))
}
