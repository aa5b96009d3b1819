// Package image checks podgauge's container images, given as OCI archives, and runs them.
//
// The tests read the archives directly, without a container runtime, to check the files as delivered.
package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// fakeDocker replaces docker, with the driver $DRIVER and the store $STORE, and records all calls in $CALLS.
const fakeDocker = `#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    "buildx inspect") printf 'Name:          default\nDriver:        %s\n' "$DRIVER" ;;
    "info --format"*) echo "$STORE" ;;
esac
`

// dockerCalls returns the docker commands of build.sh.
func dockerCalls(t *testing.T, driver, store string) []string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(fakeDocker), 0o755))
	cmd := exec.Command("sh", copyBuildScript(t), "amd64")
	log := filepath.Join(dir, "calls")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir, "BUILDER=docker", "VERSION=v9", "CALLS="+log, "DRIVER="+driver, "STORE="+store)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := testfile.Read(t, log)
	return strings.Split(strings.TrimSpace(text), "\n")
}

// copyBuildScript copies build.sh to a temporary folder, because the script removes old archives.
func copyBuildScript(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "deploy", "image", "build.sh")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(read(t, "deploy/image/build.sh")), 0o755))
	return path
}

// TestDockerBuilder checks that build.sh creates a temporary builder if docker's driver cannot write an OCI archive.
func TestDockerBuilder(t *testing.T) {
	for name, c := range map[string]struct {
		driver, store string
		creates       bool
	}{
		"default":                {"docker", "[[Backing Filesystem extfs]]", true},
		"containerd image store": {"docker", "[[driver-type io.containerd.snapshotter.v1]]", false},
		"builder selected":       {"docker-container", "[[Backing Filesystem extfs]]", false},
	} {
		t.Run(name, func(t *testing.T) {
			var created, used, removed bool
			built := 0
			all := dockerCalls(t, c.driver, c.store)
			for _, line := range all {
				created = created || line == "buildx create --name podgauge-image --driver docker-container"
				removed = line == "buildx rm podgauge-image" // last command
				if strings.HasPrefix(line, "buildx build ") {
					built++
					used = strings.Contains(line, "--builder podgauge-image ")
				}
			}
			if built != 1 || created != c.creates || used != c.creates || removed != c.creates {
				t.Errorf("created %t, used %t, removed %t, want %t; %d builds, want 1:\n%q", created, used, removed, c.creates, built, all)
			}
		})
	}
}

// TestUnknownBuilder checks that the error lists the valid values of BUILDER.
func TestUnknownBuilder(t *testing.T) {
	cmd := exec.Command("sh", copyBuildScript(t), "amd64")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir(), "BUILDER=kaniko", "VERSION=v9")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "BUILDER=kaniko: expected docker, podman or buildah") {
		t.Errorf("build.sh with an unknown BUILDER: got %v\n%s", err, out)
	}
}

// TestImages checks the archives of the environment's PODGAUGE_IMAGES.
func TestImages(t *testing.T) {
	for archive, img := range deliveredImages(t) {
		t.Run(archive, func(t *testing.T) {
			t.Logf("%.1f MB, %.1f MB unpacked", float64(img.compressed)/1e6, float64(img.uncompressed)/1e6)
			for _, check := range imageChecks {
				t.Run(check.name, func(t *testing.T) {
					found, err := check.run(img)
					expect.NoError(t, err)
					t.Log(found)
				})
			}
		})
	}
}

// TestImagesRun runs podgauge from the archives, as root with runc; qemu-user-static runs images of other architectures.
func TestImagesRun(t *testing.T) {
	for archive, img := range deliveredImages(t) {
		t.Run(archive, func(t *testing.T) { runScenarios(t, img) })
	}
}

// deliveredImages returns the images of the environment's PODGAUGE_IMAGES by archive.
func deliveredImages(t *testing.T) map[string]*ociImage {
	t.Helper()
	archives := strings.Fields(os.Getenv("PODGAUGE_IMAGES"))
	if len(archives) == 0 {
		t.Skip("make image and make image-check run it")
	}
	images := map[string]*ociImage{}
	for _, archive := range archives {
		images[filepath.Base(archive)] = readImage(t, archive)
	}
	return images
}

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
	expect.Equal(t, findInFile(t, "Dockerfile", `image\.base\.name="([^"]*)"`), base, "label base.name")
}

// openELF parses a program or library of the image.
func (i *ociImage) openELF(name string) (*elf.File, error) {
	f, _, found := i.followLinks(name)
	if !found {
		return nil, fmt.Errorf("%s is missing", name)
	}
	parsed, err := elf.NewFile(bytes.NewReader(f.content))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return parsed, nil
}

// checkArchitecture checks that the binary matches the image's architecture.
func checkArchitecture(img *ociImage) (string, error) {
	want, known := elfMachines[img.config.Architecture]
	if !known || img.config.OS != "linux" {
		return "", fmt.Errorf("unsupported platform %s/%s", img.config.OS, img.config.Architecture)
	}
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	if bin.Machine != want {
		return "", fmt.Errorf("%s is for %v, image is for %s", programPath, bin.Machine, img.config.Architecture)
	}
	return fmt.Sprintf("%s, %v", img.config.Architecture, bin.Machine), nil
}

// checkLazyBinding checks that functions of the driver are bound at the first call.
// Otherwise the process exits at its start if the driver lacks a function. podgauge-kube uses no driver.
func checkLazyBinding(img *ociImage) (string, error) {
	if img.programName() == kubeName {
		return "no driver", nil
	}
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	for tag, mask := range map[elf.DynTag]uint64{elf.DT_BIND_NOW: 0, elf.DT_FLAGS: uint64(elf.DF_BIND_NOW), elf.DT_FLAGS_1: uint64(elf.DF_1_NOW)} {
		values, err := bin.DynValue(tag)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(values, func(v uint64) bool { return v&mask == mask }) {
			return "", fmt.Errorf("%s binds functions at its start", programPath)
		}
	}
	imported, err := bin.ImportedSymbols()
	if err != nil {
		return "", err
	}
	functions := 0
	for _, symbol := range imported {
		if strings.HasPrefix(symbol.Name, "nvml") {
			functions++
		}
	}
	if functions == 0 {
		return "", errors.New("no NVML functions: built without cgo")
	}
	return fmt.Sprintf("%d NVML functions", functions), nil
}

// checkLibraries checks that the image has the dynamic linker and all required libraries and symbol versions. podgauge-kube needs none.
func checkLibraries(img *ociImage) (string, error) {
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	loader, err := interpreter(bin)
	if img.programName() == kubeName {
		if err == nil {
			return "", fmt.Errorf("%s needs %s, want a static program", programPath, loader)
		}
		return "static", nil
	}
	if err != nil {
		return "", err
	}
	if _, err := img.openELF(loader); err != nil {
		return "", fmt.Errorf("dynamic linker: %w", err)
	}
	seen := map[string]bool{}
	if err := img.resolveLibraries(bin, programPath, seen); err != nil {
		return "", err
	}
	for name := range seen {
		if strings.HasPrefix(name, "libnvidia") || strings.HasPrefix(name, "libcuda") {
			return "", fmt.Errorf("%s is required at the start", name)
		}
	}
	return fmt.Sprintf("%s and %d libraries", path.Base(loader), len(seen)), nil
}

// interpreter returns the path of the dynamic linker.
func interpreter(bin *elf.File) (string, error) {
	for _, p := range bin.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err != nil {
			return "", err
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", errors.New("statically linked, cannot load the driver's library")
}

// resolveLibraries checks the libraries of a file, recursively.
func (i *ociImage) resolveLibraries(bin *elf.File, name string, seen map[string]bool) error {
	needs, err := bin.DynamicVersionNeeds()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	libraries, err := bin.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, library := range libraries {
		parsed, err := i.findLibrary(library, bin.Machine)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := checkSymbolVersions(parsed, library, needs); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if seen[library] {
			continue
		}
		seen[library] = true
		if err := i.resolveLibraries(parsed, library, seen); err != nil {
			return err
		}
	}
	return nil
}

// libraryDir returns the folder of Debian's libraries, into which NVIDIA's runtime mounts the driver's libraries.
func (i *ociImage) libraryDir() string {
	return "/usr/lib/" + map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[i.config.Architecture]
}

// findLibrary finds a library in the default folders of Debian's dynamic linker.
func (i *ociImage) findLibrary(name string, machine elf.Machine) (*elf.File, error) {
	for _, folder := range []string{i.libraryDir(), "/lib", "/usr/lib"} {
		parsed, err := i.openELF(path.Join(folder, name))
		if err == nil && parsed.Machine == machine {
			return parsed, nil
		}
	}
	return nil, fmt.Errorf("%s is missing", name)
}

// checkSymbolVersions checks that a library defines all required symbol versions.
func checkSymbolVersions(library *elf.File, name string, needs []elf.DynamicVersionNeed) error {
	defined, err := library.DynamicVersions()
	if err != nil {
		return err
	}
	for _, need := range needs {
		if need.Name != name {
			continue
		}
		for _, version := range need.Needs {
			if !slices.ContainsFunc(defined, func(d elf.DynamicVersion) bool { return d.Name == version.Dep }) {
				return fmt.Errorf("%s lacks %s", name, version.Dep)
			}
		}
	}
	return nil
}
