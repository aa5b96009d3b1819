package image

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// read returns the content of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	content := testfile.Read(t, filepath.Join("..", "..", "..", name))
	return content
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
	for target, command := range map[string]string{
		`^build:.*\n\tgo build (.*) -o `:                           `CC=\$CC GOARCH=\$TARGETARCH go build (.*) -o /out/podgauge `,
		`^kubectl-podgauge:.*\n\tcd kube && (CGO_.* build .*) -o `: `cd kube && (CGO_.*) -o /out/podgauge `,
	} {
		flags := findInFile(t, "Makefile", target)
		flags = strings.NewReplacer("$(VERSION)", "$VERSION", "'", `"`).Replace(flags)
		got := strings.Replace(findInFile(t, "Dockerfile", command), " GOARCH=$TARGETARCH", "", 1)
		if got != flags {
			t.Errorf("build flags of the Dockerfile: got %s\nwant as in the Makefile: %s", got, flags)
		}
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
