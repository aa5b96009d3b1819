// Package require ends tests at the first error.
package require

import "testing"

// NoError ends the test after an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
