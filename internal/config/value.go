package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
	"go.yaml.in/yaml/v3"
)

// sharingKeys and patternKeys are the keys of structured values.
var (
	sharingKeys = []string{
		".renameByDefault", ".failRequestsGreaterThanOne",
		".resources[].name", ".resources[].rename", ".resources[].devices", ".resources[].replicas",
	}
	patternKeys = []string{"[].pattern", "[].name"}
)

// value reads and writes a field as text. Flags, variables and files share the
// text form, and so the meaning.
type value struct {
	set            func([]string) error   // nil: only a file can express the value
	read           func(*yaml.Node) error // from a file
	text           func() string
	isBool, isList bool
	defaultValue   string   // as a flag spells it
	allowed        []string // valid values; nil: all
	keys           []string // below the path of a value without set
}

// one is a single value.
func one[T any](p *T, defaultValue string, parse func(string) (T, error)) value {
	set := func(texts []string) (err error) {
		*p, err = parse(texts[0])
		return err
	}
	read := func(n *yaml.Node) error {
		var text string
		if err := n.Decode(&text); err != nil {
			return err
		}
		return set([]string{text})
	}
	return value{set: set, read: read, text: func() string { return fmt.Sprint(*p) }, defaultValue: defaultValue}
}

// list is a list of unique values. With allowed values, at least one is
// required. In a file it may be a string, as NVIDIA's deviceListStrategy.
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
	read := func(n *yaml.Node) error {
		if n.Kind == yaml.ScalarNode {
			return set(splitList(n.Value))
		}
		var texts []string
		if err := n.Decode(&texts); err != nil {
			return err
		}
		return set(texts)
	}
	return value{set: set, read: read, text: func() string { return joinAll(*p) }, isList: true, allowed: allowed}
}

// fromFile is a value with a structure.
func fromFile(p fmt.Stringer, keys ...string) value {
	return value{read: func(n *yaml.Node) error { return n.Decode(p) }, text: p.String, keys: keys}
}

func oneText(p *string, defaultValue string) value { return one(p, defaultValue, anyText) }

func boolean(p *bool) value {
	v := one(p, "false", parseBool)
	v.isBool, v.read = true, func(n *yaml.Node) error { return n.Decode(p) }
	return v
}

// oneOf is one of the allowed values. The first one is the default.
func oneOf[T ~string](p *T, allowed ...T) value {
	v := one(p, string(allowed[0]), choice(allowed))
	v.allowed = textsOf(allowed)
	return v
}

// someOf is at least one of the allowed values. The first one is the default.
func someOf[T ~string](p *[]T, allowed ...T) value {
	v := list(p, choice(allowed), textsOf(allowed)...)
	v.defaultValue = string(allowed[0])
	return v
}

func choice[T ~string](allowed []T) func(string) (T, error) {
	return func(s string) (T, error) {
		if !slices.Contains(allowed, T(s)) {
			return "", fmt.Errorf("%q: expected %s", s, joinOr(textsOf(allowed)))
		}
		return T(s), nil
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
func joinAll[T any](items []T) string { return strings.Join(textsOf(items), ", ") }

func textsOf[T any](items []T) []string {
	return text.Each(items, func(item T) string { return fmt.Sprint(item) })
}
