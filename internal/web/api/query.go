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
)

// maxQueryBytes is how many bytes of parameters are read. Names of pods have 253 at most.
const maxQueryBytes = 4096

// How many incidents an answer has where nothing is said, and at most.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Query says what an answer is to be about. The zero value of a field is anything.
type Query struct {
	// Device is a device's UUID, a GPU's, which stands for its slices as well, or a GPU's
	// index.
	Device         string
	Namespace, Pod string
	Reason         string
	Since          time.Time
	Limit          int // never 0 once it was parsed
}

// ParseQuery reads parameters as they stand in a URL. Whoever mistypes one learns it, and
// does not get everything.
func ParseQuery(raw string, params []string, now time.Time) (Query, error) {
	q := Query{Limit: DefaultLimit}
	if len(raw) > maxQueryBytes {
		return q, fmt.Errorf("the parameters have %d bytes: want %d at most", len(raw), maxQueryBytes)
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, fmt.Errorf("read the parameters: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(params, name):
			return q, fmt.Errorf("unknown parameter %q: want %s", name, cmp.Or(strings.Join(params, ", "), "none"))
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
	if value == "" {
		return errors.New("want a value")
	}
	switch name {
	case "device":
		q.Device = value
	case "namespace":
		q.Namespace = value
	case "pod":
		q.Pod = value
	case "reason":
		q.Reason = value
	case "since":
		q.Since, err = parseSince(value, now)
	case "limit":
		if q.Limit, err = strconv.Atoi(value); err != nil || q.Limit < 1 || q.Limit > MaxLimit {
			err = fmt.Errorf("want a number from 1 to %d", MaxLimit)
		}
	}
	return err
}

// parseSince reads a time, or for how long it has been.
func parseSince(value string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return at, nil
	}
	ago, err := time.ParseDuration(value)
	if err != nil || ago < 0 {
		return time.Time{}, errors.New("want a time (2006-01-02T15:04:05Z) or a duration (90m, 24h)")
	}
	return now.Add(-ago), nil
}

// deviceMatcher is what a Query's Device stands for.
type deviceMatcher struct {
	all   bool
	id    string // of a device or a GPU
	index int    // where id is empty: a GPU's, as it was
}

// deviceMatcher looks the query's device up. An index is that of the Board or, where it has none
// such, the one that a GPU had.
func (q Query) deviceMatcher(statuses []device.Status) deviceMatcher {
	index, err := strconv.Atoi(q.Device)
	switch {
	case q.Device == "":
		return deviceMatcher{all: true}
	case err != nil || index < 0: // no GPU's
		return deviceMatcher{id: q.Device}
	}
	for _, s := range statuses {
		if s.Index == index {
			return deviceMatcher{id: string(s.GPU)}
		}
	}
	return deviceMatcher{index: index}
}

// matches tells whether a device is meant.
func (m deviceMatcher) matches(id device.ID, gpu device.GPU, index int) bool {
	if m.id != "" {
		return m.id == string(id) || m.id == string(gpu)
	}
	return m.all || m.index == index
}

// matchesPod tells whether a container is meant.
func (q Query) matchesPod(namespace, pod string) bool {
	return (q.Namespace == "" || q.Namespace == namespace) && (q.Pod == "" || q.Pod == pod)
}
