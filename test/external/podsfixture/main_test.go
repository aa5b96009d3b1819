package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestFixturesAreThoseOfThisModule(t *testing.T) {
	const dir = "../../../internal/pods/testdata"
	all, err := fixtureFiles()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what `go run . %s` writes: %v", name, dir, err)
		}
	}
	for _, ending := range []string{"*.pb", "*.json"} {
		there, err := filepath.Glob(filepath.Join(dir, ending))
		if err != nil || len(there) != len(all)/2 {
			t.Errorf("%d files are %s, want %d: %v", len(there), ending, len(all)/2, err)
		}
	}
}
