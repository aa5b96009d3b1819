package image

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// read returns the content of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// findInFile returns the match of an expression with one group in a file.
func findInFile(t *testing.T, file, expression string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)` + expression).FindStringSubmatch(read(t, file))
	if found == nil {
		t.Fatalf("%s has no %s", file, expression)
	}
	return found[1]
}

// TestBuildFlags checks that the image and `make build` use the same flags, so that the delivered binary is the tested binary.
func TestBuildFlags(t *testing.T) {
	flags := findInFile(t, "Makefile", `^build:.*\n\tgo build (.*) -o `)
	flags = strings.NewReplacer("$(VERSION)", "$VERSION", "'", `"`).Replace(flags)
	if got := findInFile(t, "Dockerfile", `go build (.*) -o /out/podgauge `); got != flags {
		t.Errorf("build flags of the Dockerfile: got %s\nwant as in the Makefile: %s", got, flags)
	}
	for _, name := range []string{"CGO_LDFLAGS", "CGO_CFLAGS"} {
		want := findInFile(t, "Makefile", `^export `+name+` = (.*)$`)
		if got := findInFile(t, "Dockerfile", `^ENV .*`+name+`="([^"]*)"`); got != want {
			t.Errorf("%s in the Dockerfile: got %q, want %q as in the Makefile", name, got, want)
		}
	}
}

// TestBuildImage checks that the build image has the Go version of go.mod and the glibc of the base image.
// The base image lacks symbols of newer glibc versions.
func TestBuildImage(t *testing.T) {
	version := findInFile(t, "go.mod", `^go (\d+\.\d+)`)
	if got := findInFile(t, "Dockerfile", `^FROM .*/golang:([\d.]+)-`); got != version && !strings.HasPrefix(got, version+".") {
		t.Errorf("Go version of the build image: got %s, want %s as in go.mod", got, version)
	}
	suite := findInFile(t, "Dockerfile", `^FROM .*/golang:[\d.]+-(\w+)@\S+ AS build$`)
	debian := findInFile(t, "Dockerfile", `^FROM .*distroless/\S+-debian(\d+):latest@\S+$`)
	if want := map[string]string{"12": "bookworm", "13": "trixie"}[debian]; suite != want {
		t.Errorf("suite of the build image: got %s, want %s of Debian %s", suite, want, debian)
	}
	base := findInFile(t, "Dockerfile", `^FROM --platform=\$TARGETPLATFORM (\S+)@sha256:[0-9a-f]{64}$`)
	if got := findInFile(t, "Dockerfile", `image\.base\.name="([^"]*)"`); got != base {
		t.Errorf("label base.name: got %s, want %s", got, base)
	}
}

// TestBuildContext checks that the build context includes each file of each package.
func TestBuildContext(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-json=Dir,Module,GoFiles,CgoFiles,CFiles,HFiles,EmbedFiles", "./cmd/podgauge", "./cmd/podgauge-sim")
	list.Dir = filepath.Join("..", "..", "..")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"go.mod", "go.sum", "LICENSE"}
	for packages := json.NewDecoder(strings.NewReader(string(out))); packages.More(); {
		var p struct {
			Dir                                           string
			Module                                        *struct{ Main bool }
			GoFiles, CgoFiles, CFiles, HFiles, EmbedFiles []string
		}
		if err := packages.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Module == nil || !p.Module.Main {
			continue
		}
		root, err := filepath.Abs(list.Dir)
		if err != nil {
			t.Fatal(err)
		}
		folder, err := filepath.Rel(root, p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range [][]string{p.GoFiles, p.CgoFiles, p.CFiles, p.HFiles, p.EmbedFiles} {
			for _, name := range names {
				files = append(files, filepath.ToSlash(filepath.Join(folder, name)))
			}
		}
	}
	if len(files) < 50 {
		t.Fatalf("files: got %d, want at least 50", len(files))
	}
	patterns := strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(read(t, ".dockerignore"), ""))
	for _, file := range files {
		if pattern := ignoringPattern(patterns, file); pattern != "" {
			t.Errorf("%s is ignored: %s", file, pattern)
		}
	}
	for _, file := range []string{"bin/podgauge", "docs/reference/api.md", "internal/config/testdata/x", "internal/config/build_test.go", ".git/HEAD"} {
		if ignoringPattern(patterns, file) == "" {
			t.Errorf("%s is not ignored", file)
		}
	}
}

// ignoringPattern returns the pattern that ignores a file or one of its folders.
func ignoringPattern(patterns []string, file string) string {
	for _, pattern := range patterns {
		name, anywhere := strings.CutPrefix(pattern, "**/")
		for at := file; at != "."; at = path.Dir(at) {
			candidate := at
			if anywhere {
				candidate = path.Base(at)
			}
			if matched, err := path.Match(name, candidate); matched && err == nil {
				return pattern
			}
		}
	}
	return ""
}
