package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The kinds of value that a flag, a variable and a file can all express. Each
// carries them as text; there is one way into the Settings for all three.

// assignValues reads values into what dst points to: a string, bool, []string, []int
// []Ref or []ClaimPattern.
func assignValues(dst any, values []string) error {
	switch dst := dst.(type) {
	case *string:
		*dst = values[0]
	case *bool:
		b, err := strconv.ParseBool(values[0])
		if err != nil {
			return fmt.Errorf("%q: want true or false", values[0])
		}
		*dst = b
	case *[]string:
		*dst = slices.Clone(values)
	case *[]int:
		numbers := make([]int, 0, len(values))
		for _, v := range values {
			n, err := strconv.Atoi(v)
			if err != nil {
				return fmt.Errorf("%q: want a number", v)
			}
			numbers = append(numbers, n)
		}
		*dst = numbers
	case *[]DeviceSelector:
		selectors := make([]DeviceSelector, 0, len(values))
		for _, v := range values {
			selector, err := ParseDeviceSelector(v)
			if err != nil {
				return err
			}
			selectors = append(selectors, selector)
		}
		*dst = selectors
	case *[]ClaimPattern:
		patterns := make([]ClaimPattern, 0, len(values))
		for _, v := range values {
			p, err := ParseClaimPattern(v)
			if err != nil {
				return err
			}
			patterns = append(patterns, p)
		}
		*dst = patterns
	default:
		panic(fmt.Sprintf("config: a row of type %T", dst))
	}
	return nil
}

// isList tells the settings that take several values.
func isList(dst any) bool { return reflect.TypeOf(dst).Elem().Kind() == reflect.Slice }

// isBool tells the settings that a flag gives without a value.
func isBool(dst any) bool { return reflect.TypeOf(dst).Elem().Kind() == reflect.Bool }

// splitList takes apart what a flag or a variable says of a list. An empty one is an
// empty list.
func splitList(s string) []string {
	var values []string
	for value := range strings.SplitSeq(s, ",") {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, value)
		}
	}
	return values
}

// values reads what a file says of a setting that is not of the file alone.
func (n *node) values(dst any) ([]string, error) {
	switch {
	case isBool(dst):
		b, err := n.boolean()
		return []string{strconv.FormatBool(b)}, err
	case !isList(dst):
		s, err := n.word()
		return []string{s}, err
	case n.kind == yaml.ScalarNode: // NVIDIA's deviceListStrategy is either
		s, err := n.word()
		return splitList(s), err
	case n.kind != yaml.SequenceNode:
		return nil, newParseError(n.line, "want a list")
	}
	values := make([]string, 0, len(n.items))
	for _, item := range n.items {
		s, err := item.word()
		if err != nil {
			return nil, err
		}
		values = append(values, s)
	}
	return values, nil
}

// word reads a string. NVIDIA's parser takes a number for one too, but no bool.
func (n *node) word() (string, error) {
	if n.kind != yaml.ScalarNode || n.tag != "!!str" && n.tag != "!!int" && n.tag != "!!float" {
		return "", newParseError(n.line, "want a string")
	}
	if n.tag == "!!int" {
		if i, err := n.integer(); err == nil {
			return strconv.Itoa(i), nil
		}
	}
	return n.text, nil
}

// words11 are the further booleans of YAML 1.1, which NVIDIA's parser reads.
var words11 = map[string]bool{"yes": true, "y": true, "on": true, "no": false, "n": false, "off": false}

// boolean reads a bool. One in quotes is a string, to NVIDIA's parser as well.
func (n *node) boolean() (bool, error) {
	if n.kind == yaml.ScalarNode && n.tag == "!!bool" {
		return strings.EqualFold(n.text, "true"), nil
	}
	if b, ok := words11[strings.ToLower(n.text)]; ok && n.plain && n.kind == yaml.ScalarNode {
		return b, nil
	}
	return false, newParseError(n.line, "want true or false")
}

// integer reads a number as YAML writes them: 16, 0x10, 020, 1_000, 16.0.
func (n *node) integer() (int, error) {
	if n.kind == yaml.ScalarNode && (n.tag == "!!int" || n.tag == "!!float") {
		digits := strings.ReplaceAll(n.text, "_", "")
		if i, err := strconv.ParseInt(digits, 0, 32); err == nil {
			return int(i), nil
		}
		if f, err := strconv.ParseFloat(digits, 64); err == nil && f == math.Trunc(f) && math.Abs(f) <= math.MaxInt32 {
			return int(f), nil
		}
	}
	return 0, newParseError(n.line, "want a whole number")
}
