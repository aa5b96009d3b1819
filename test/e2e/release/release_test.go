// Package release checks the files of a release that `make release-check` builds, the workflows that build it, and `go install`.
package release

import (
	"archive/tar"
	"archive/zip"
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
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/expect"
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

// TestGoInstall checks that `go install github.com/podgauge/podgauge/cmd/podgauge@VERSION` builds a program that starts. The module
// comes from a folder in the layout of a module proxy (https://go.dev/ref/mod#goproxy-protocol).
func TestGoInstall(t *testing.T) {
	const module, version = "github.com/podgauge/podgauge", "v0.0.0-test"
	proxy, bin := t.TempDir(), t.TempDir()
	folder := filepath.Join(proxy, module, "@v")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	for name, text := range map[string]string{
		"list": version, version + ".info": `{"Version": "` + version + `"}`, version + ".mod": testfile.Read(t, "../../../go.mod"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	writeModule(t, filepath.Join(folder, version+".zip"), module+"@"+version+"/")

	env := strings.Fields(output(t, exec.Command("go", "env", "GOPROXY", "GOMODCACHE")))
	unpacked, downloaded := filepath.Join(env[1], module+"@"+version), filepath.Join(env[1], "cache/download", module)
	forget := func() { // an earlier state of the module
		expect.NoError(t, errors.Join(os.RemoveAll(unpacked), os.RemoveAll(downloaded)))
	}
	forget()
	t.Cleanup(forget)
	install := exec.Command("go", "install", "-modcacherw", module+"/cmd/podgauge@"+version)
	install.Env = append(os.Environ(), "GOPROXY=file://"+proxy+","+env[0], "GONOSUMDB="+module, "GOBIN="+bin, "CGO_LDFLAGS=", "CGO_CFLAGS=",
		"GODEBUG=goindex=0") // the index in the build cache is that of the version's earlier files
	output(t, install)
	if out := output(t, exec.Command(filepath.Join(bin, "podgauge"), "version")); out != "podgauge "+version {
		t.Errorf("podgauge version: got %q, want version %s", out, version)
	}
}

// writeModule writes the files of the repository's main module to a zip file.
func writeModule(t *testing.T, path, prefix string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	archive := zip.NewWriter(file)
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	list.Dir = "../../.."
	for name := range strings.FieldsSeq(output(t, list)) {
		source, err := os.Open(filepath.Join(list.Dir, name))
		if os.IsNotExist(err) || isOtherModule(list.Dir, name) { // a deleted file is still listed
			continue
		}
		require.NoError(t, err)
		packed, err := archive.Create(prefix + name)
		if err == nil {
			_, err = io.Copy(packed, source)
		}
		source.Close()
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
}

// isOtherModule reports whether a file belongs to another module of the repository.
func isOtherModule(root, name string) bool {
	for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// output returns the standard output of a command.
func output(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", command.Args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}
