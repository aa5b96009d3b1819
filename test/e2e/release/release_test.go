// Package release checks the files of a release that `make release-check` builds, the workflows that build it, and `go install`.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestRelease checks the archives, SBOMs and checksums in $PODGAUGE_RELEASE for the version $VERSION.
func TestRelease(t *testing.T) {
	dir := os.Getenv("PODGAUGE_RELEASE")
	if dir == "" {
		t.Skip("make release-check runs it")
	}
	files := filepath.Join(dir, "files")
	archives, err := filepath.Glob(filepath.Join(files, "*.tar.gz"))
	if err != nil || len(archives) != 10 { // three images and the kubectl plugin for two architectures each, and the plugin for macOS
		t.Errorf("archives: got %d, want 10: %v", len(archives), err)
	}
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
		t.Run(name, func(t *testing.T) { checkArchive(t, archive, name) })
	}
	checkSums(t, files)
}

// checkArchive checks one NAME_VERSION_OS_ARCH.tar.gz and its NAME_VERSION_OS_ARCH.spdx.json.
func checkArchive(t *testing.T, archive, name string) {
	parts := strings.Split(name, "_")
	program, system, arch := parts[0], parts[2], parts[3]
	content := unpack(t, archive)
	if len(content) != 2 || len(content["LICENSE"]) == 0 {
		t.Errorf("files: got %d, want %s and LICENSE", len(content), program)
	}
	info, err := buildinfo.Read(bytes.NewReader(content[program]))
	require.NoError(t, err)
	for _, s := range info.Settings {
		if s.Key == "GOOS" && s.Value != system || s.Key == "GOARCH" && s.Value != arch {
			t.Errorf("built with %s=%s", s.Key, s.Value)
		}
	}
	packages := readSBOM(t, strings.TrimSuffix(archive, ".tar.gz")+".spdx.json")
	for _, module := range info.Deps {
		if module.Replace != nil { // with a folder of the repository
			continue
		}
		if !packages[module.Path+" "+module.Version] {
			t.Errorf("the SBOM lacks %s %s", module.Path, module.Version)
		}
	}
	if !packages["stdlib "+info.GoVersion] {
		t.Errorf("the SBOM lacks the standard library of %s", info.GoVersion)
	}
	if program != "kubectl-podgauge" && !packages["deb libc6"] {
		t.Error("the SBOM lacks the image's libc6")
	}
	t.Logf("%d modules, %d packages in the SBOM", len(info.Deps), len(packages))
	if system == runtime.GOOS && arch == runtime.GOARCH {
		checkVersion(t, program, content[program])
	}
}

// checkVersion checks that the program prints the version of the release.
func checkVersion(t *testing.T, program string, content []byte) {
	path := filepath.Join(t.TempDir(), program)
	require.NoError(t, os.WriteFile(path, content, 0o755))
	out, err := exec.CommandContext(t.Context(), path, "version").CombinedOutput()
	if want := os.Getenv("VERSION"); err != nil || want == "" || !strings.Contains(string(out), want) {
		t.Errorf("%s version: got error %v, want %q in the output:\n%s", program, err, want, out)
	}
}

// unpack returns the files of a tar.gz by name.
func unpack(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	unzipped, err := gzip.NewReader(strings.NewReader(testfile.Read(t, archive)))
	require.NoError(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// readSBOM returns an SPDX file's packages: a Go module as "path version", a Debian package as "deb name".
func readSBOM(t *testing.T, path string) map[string]bool {
	t.Helper()
	var sbom struct {
		SPDXVersion string
		Packages    []struct {
			Name, VersionInfo string
			ExternalRefs      []struct{ ReferenceLocator string }
		}
	}
	if err := json.Unmarshal([]byte(testfile.Read(t, path)), &sbom); err != nil || sbom.SPDXVersion != "SPDX-2.3" {
		t.Fatalf("%s: SPDX version %q, %v", path, sbom.SPDXVersion, err)
	}
	packages := map[string]bool{}
	for _, p := range sbom.Packages {
		packages[p.Name+" "+p.VersionInfo] = true
		for _, ref := range p.ExternalRefs {
			if strings.HasPrefix(ref.ReferenceLocator, "pkg:deb/") {
				packages["deb "+p.Name] = true
			}
		}
	}
	return packages
}

// checkSums checks that checksums.txt has each file of the release with its SHA-256.
func checkSums(t *testing.T, files string) {
	list := testfile.Read(t, filepath.Join(files, "checksums.txt"))
	entries, err := os.ReadDir(files)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "checksums.txt") {
			continue
		}
		sum := sha256.Sum256([]byte(testfile.Read(t, filepath.Join(files, e.Name()))))
		if !strings.Contains(list, hex.EncodeToString(sum[:])+"  "+e.Name()+"\n") {
			t.Errorf("checksums.txt lacks %s", e.Name())
		}
	}
}
