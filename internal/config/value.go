package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// sharingKeys and patternKeys are the keys of structured values.
var (
	sharingKeys = []string{
		".renameByDefault", ".failRequestsGreaterThanOne",
		".resources[].name", ".resources[].rename", ".resources[].devices", ".resources[].replicas",
	}
	patternKeys = []string{"[].pattern", "[].name"}
)

// value reads and writes a field as text. Flags, variables and files share the text form, and so the meaning.
type value struct {
	set            func([]string) error // nil: only a file can express the value
	text           func() string
	isBool, isList bool
	defaultValue   string   // as a flag spells it
	allowed        []string // valid values; nil: all
	field          any      // of a value without set
	keys           []string // below the path of a value without set
}

// one is a single value.
func one[T any](p *T, defaultValue string, parse func(string) (T, error)) value {
	_, isBool := any(p).(*bool)
	set := func(texts []string) (err error) {
		*p, err = parse(texts[0])
		return err
	}
	return value{set: set, text: func() string { return fmt.Sprint(*p) }, isBool: isBool, defaultValue: defaultValue}
}

// list is a list of unique values. With allowed values, at least one is required.
func list[T any](p *[]T, parse func(string) (T, error), allowed ...string) value {
	set := func(texts []string) error {
		if len(texts) == 0 && len(allowed) > 0 {
			return fmt.Errorf("expected at least one of %s", strings.Join(allowed, ", "))
		}
		parsed := make([]T, 0, len(texts))
		for i, text := range texts {
			item, err := parse(text)
			if err != nil {
				return err
			}
			if !slices.Contains(texts[:i], text) {
				parsed = append(parsed, item)
			}
		}
		*p = parsed
		return nil
	}
	return value{set: set, text: func() string { return joinAll(*p) }, isList: true, allowed: allowed}
}

// fromFile is a value with a structure.
func fromFile(p fmt.Stringer, keys ...string) value {
	return value{field: p, text: p.String, keys: keys}
}

func oneText(p *string, defaultValue string) value { return one(p, defaultValue, anyText) }

func boolean(p *bool) value { return one(p, "false", parseBool) }

// oneOf is one of the allowed values. The first one is the default.
func oneOf(p *string, allowed ...string) value {
	v := one(p, allowed[0], choice(allowed))
	v.allowed = allowed
	return v
}

// someOf is at least one of the allowed values. The first one is the default.
func someOf(p *[]string, allowed ...string) value {
	v := list(p, choice(allowed), allowed...)
	v.defaultValue = allowed[0]
	return v
}

func choice(allowed []string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(allowed, s) {
			return "", fmt.Errorf("%q: expected %s", s, joinOr(allowed))
		}
		return s, nil
	}
}

func anyText(s string) (string, error) { return s, nil }

func parseBool(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		err = fmt.Errorf("%q: expected true or false", s)
	}
	return b, err
}

// maxNumber bounds the settings that are numbers.
const maxNumber = 1024

func parseNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxNumber {
		return 0, fmt.Errorf("%q: expected a whole number from 0 to %d", s, maxNumber)
	}
	return n, nil
}

// parseChannel accepts the same channel as NVIDIA's plugin.
func parseChannel(s string) (int, error) {
	if s != "0" {
		return 0, fmt.Errorf("%q: expected no channel, or channel 0", s)
	}
	return 0, nil
}

// splitList splits the value of a list in a flag or variable.
func splitList(s string) []string {
	words := strings.Split(s, ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	return slices.DeleteFunc(words, func(word string) bool { return word == "" })
}

// joinOr joins two or more words as a sentence does.
func joinOr(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// joinAll joins the texts of items.
func joinAll[T any](items []T) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = fmt.Sprint(item)
	}
	return strings.Join(words, ", ")
}
