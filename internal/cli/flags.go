package cli

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/pflag"
)

// NormalizeDashes adds a dash to flags with a single dash. NVIDIA's plugin
// accepts such flags; pflag reads single letters.
func NormalizeDashes(f *pflag.FlagSet, args []string) []string {
	normalized := slices.Clone(args)
	for i, arg := range normalized {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		switch {
		case arg == "--":
			return normalized
		case strings.HasPrefix(arg, "-") && len(name) > 1 && f.Lookup(name) != nil:
			normalized[i] = "-" + arg
		}
	}
	return normalized
}

// valueHints are the forms of values by type of flag. The errors of package
// strconv name Go functions.
var valueHints = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number",
	"duration": "a duration such as 30s",
}

// FlagError returns an error in the form of a variable's or file's error.
func FlagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	if want := valueHints[invalid.GetFlag().Value.Type()]; want != "" {
		return fmt.Errorf("--%s: %q: expected %s", invalid.GetFlag().Name, invalid.GetValue(), want)
	}
	return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
}

// AddIncidentFilters declares the filters of incidents, which have the names of
// the API.
func AddIncidentFilters(f *pflag.FlagSet) map[string]*string {
	filters := map[string]*string{}
	filter := func(name, short, usage string) { filters[name] = f.StringP(name, short, "", usage) }
	filter("device", "d", "only incidents of this `device` (UUID), or of a GPU with all MIG devices (UUID or index)")
	filter("namespace", "n", "only incidents affecting a pod in this `namespace`")
	filter("pod", "p", "only incidents affecting a pod with this `name`")
	filter("reason", "", "only incidents with this `reason`: xid_79")
	filter("since", "", "only incidents since this `time`, or within this duration: 2006-01-02T15:04:05Z, 90m, 24h")
	filter("limit", "", fmt.Sprintf("at most this `number` of incidents of a node, newest first, up to %d (default %d)",
		api.MaxLimit, api.DefaultLimit))
	return filters
}

// IncidentQuery returns the parameters of the given filters, checked as by the
// daemon.
func IncidentQuery(f *pflag.FlagSet, filters map[string]*string) (url.Values, error) {
	query := url.Values{}
	var allowed []string
	for name, value := range filters {
		allowed = append(allowed, name)
		if f.Changed(name) {
			query.Set(name, *value)
		}
	}
	if _, err := api.ParseQuery(query.Encode(), allowed, time.Now()); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	return query, nil
}
