package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
