package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const v1 = "version: v1\n"

// TestFiles checks the error, or notices, unknown keys and settings, of the files in testdata/files.txt. A case is "==",
// the file, "--" and the lines.
func TestFiles(t *testing.T) {
	const name = "testdata/files.txt"
	var updated strings.Builder
	for c := range strings.SplitSeq("\n"+strings.TrimSuffix(testfile.Read(t, name), "\n"), "\n==\n") {
		if c == "" {
			continue
		}
		file, _, _ := strings.Cut(c, "\n--\n")
		l, got := loadFile(t, file+"\n")
		if got == "accepted" {
			got = describe(l)
		}
		fmt.Fprintf(&updated, "==\n%s\n--\n%s\n", file, got)
	}
	testfile.CheckGolden(t, *update, name, updated.String())
}

// TestHostileFiles checks that small files cannot take unlimited resources.
func TestHostileFiles(t *testing.T) {
	bomb := v1 + "flags:\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("  %c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 10))
	}
	manyKeys := ""
	for i := range maxFileBytes / 16 {
		manyKeys += fmt.Sprintf("x%d: 1\n", i)
	}
	for file, want := range map[string]string{
		"":                   "config.yaml: is empty",
		"\xff\xfe\x00":       "config.yaml: incomplete UTF-16 character",
		v1 + "flags: \x01\n": "config.yaml: control characters are not allowed",
		"version: v1 # " + strings.Repeat("x", maxFileBytes): "config.yaml: more than 128 KiB",
		bomb:                        "document contains excessive aliasing",
		v1 + "flags: &a [*a]\n":     "anchor 'a' value contains itself",
		v1 + "flags: &a {<<: *a}\n": "anchor 'a' value contains itself",
		v1 + "flags: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000): "flags: expected a mapping",
		strings.Repeat("[", maxFileBytes):                                      "exceeded max depth of 10000",
		strings.Repeat("{a: ", 30000):                                          "exceeded max depth of 10000",
		"[" + strings.Repeat("1,", maxFileBytes/2-1):                           "did not find expected",
		v1 + manyKeys + "flags: 0\n":                                           "flags: expected a mapping",
		"version: *v\n":                                                        "unknown anchor 'v' referenced",
		v1 + "<<: 5\n":                                                         "map merge requires map or sequence of maps as the value",
	} {
		if _, got := loadFile(t, file); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%.80q: got error %q, want %q", file, got, want)
		}
	}
}

// TestDependentSettings checks settings that depend on others.
func TestDependentSettings(t *testing.T) {
	if s := mustLoad(t, v1+"flags: {nvidiaDriverRoot: 5}\n").Settings; s.DriverRoot != "5" || s.DevRoot != "5" {
		t.Errorf("got driver root %s and dev root %s, want 5", s.DriverRoot, s.DevRoot)
	}
	for given, want := range map[string]bool{"": true, "failRequestsGreaterThanOne: false,": false} {
		file := v1 + "flags: {mpsRoot: /m}\nsharing: {mps: {" + given + " resources: [{name: gpu, replicas: 2}]}}\n"
		if got := mustLoad(t, file).Settings.Sharing.MPS.FailRequestsGreaterThanOne; got != want {
			t.Errorf("%q: got requests for several replicas rejected %v, want %v", given, got, want)
		}
	}
}
