package release

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var (
	actionLine  = regexp.MustCompile(`(?m)\buses: *(.*)$`)
	pinned      = regexp.MustCompile(`^\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	baseLine    = regexp.MustCompile(`(?m)^FROM .*$`)
	hasDigest   = regexp.MustCompile(`@sha256:[0-9a-f]{64}( AS \w+)?$`)
	workflowUse = regexp.MustCompile(`(?m)(?:\bmake|\bverb:) ([a-z][a-z0-9 -]*)|\bverb: \[([^\]]*)\]`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):|^SHORT = (.*)$`)
)

// TestPinned checks that workflows pin actions by commit, with the version as a comment, and the Dockerfile base images by digest.
func TestPinned(t *testing.T) {
	actions := 0
	for name, text := range workflows(t) {
		for _, match := range actionLine.FindAllStringSubmatch(text, -1) {
			actions++
			if !strings.HasPrefix(match[1], "./") && !pinned.MatchString(match[1]) {
				t.Errorf("%s: %s, want NAME@COMMIT # VERSION", name, match[1])
			}
		}
	}
	bases := baseLine.FindAllString(testfile.Read(t, "../../../Dockerfile"), -1)
	for _, line := range bases {
		if !hasDigest.MatchString(line) {
			t.Errorf("Dockerfile: %s, want a digest", line)
		}
	}
	if actions < 5 || len(bases) != 2 {
		t.Errorf("actions and base images: got %d and %d, want at least 5 and exactly 2", actions, len(bases))
	}
}

// TestPermissions checks that workflows grant no permissions by default, so that each job lists the required permissions.
func TestPermissions(t *testing.T) {
	for name, text := range workflows(t) {
		if !strings.Contains(text, "\npermissions: {}\n") {
			t.Errorf("%s lacks \"permissions: {}\" at the top level", name)
		}
	}
}

// TestMakeVerbs checks that workflows run targets of the Makefile, including test-all, lint, e2e-all and release-check.
func TestMakeVerbs(t *testing.T) {
	var targets, used []string
	for _, match := range makeTarget.FindAllStringSubmatch(testfile.Read(t, "../../../Makefile"), -1) {
		targets = append(targets, strings.Fields(match[1]+match[2])...)
	}
	for name, text := range workflows(t) {
		for _, match := range workflowUse.FindAllStringSubmatch(text, -1) {
			for verb := range strings.FieldsFuncSeq(match[1]+match[2], func(r rune) bool { return r == ' ' || r == ',' }) {
				used = append(used, verb)
				if !slices.Contains(targets, verb) {
					t.Errorf("%s runs make %s, but the Makefile has no such target", name, verb)
				}
			}
		}
	}
	for _, verb := range []string{"test-all", "lint", "e2e-all", "release-check"} {
		if !slices.Contains(used, verb) {
			t.Errorf("no workflow runs make %s", verb)
		}
	}
}

// workflows returns the text of each workflow by file name.
func workflows(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../../.github/workflows/*.yaml")
	if err != nil || len(paths) < 3 {
		t.Fatalf("%d workflows: %v", len(paths), err)
	}
	all := map[string]string{}
	for _, path := range paths {
		all[filepath.Base(path)] = testfile.Read(t, path)
	}
	return all
}
