// Package expect reports values that a test does not expect, and the test
// continues.
package expect

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Equal expects got == want. The name of the value precedes the message, as
// fmt.Sprintln formats it.
func Equal[T comparable](t testing.TB, got, want T, name ...any) {
	t.Helper()
	if got != want {
		report(t, got, want, name)
	}
}

// EqualSlices expects two slices of equal elements.
func EqualSlices[S ~[]E, E comparable](t testing.TB, got, want S, name ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		report(t, got, want, name)
	}
}

// DeepEqual expects two deeply equal values.
func DeepEqual[T any](t testing.TB, got, want T, name ...any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		report(t, got, want, name)
	}
}

// Contains expects a text that contains part.
func Contains(t testing.TB, text, part string, name ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%sgot %s\nwant it to contain %q", prefix(name), text, part)
	}
}

// NoError expects no error.
func NoError(t testing.TB, err error, name ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s%v", prefix(name), err)
	}
}

// Error expects an error whose message contains text.
func Error(t testing.TB, err error, text string, name ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%sgot error %v\nwant one with %q", prefix(name), err, text)
	}
}

// ErrorIs expects an error that wraps target.
func ErrorIs(t testing.TB, err, target error, name ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%sgot error %v\nwant %v", prefix(name), err, target)
	}
}

func report(t testing.TB, got, want any, name []any) {
	t.Helper()
	verb := "%+v"
	if _, isSlice := got.([]string); isSlice {
		verb = "%q"
	}
	t.Errorf("%sgot "+verb+"\nwant "+verb, prefix(name), got, want)
}

func prefix(name []any) string {
	if len(name) == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintln(name...)) + ": "
}
