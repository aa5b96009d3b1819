package release

import (
	"archive/zip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

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
		if err := errors.Join(os.RemoveAll(unpacked), os.RemoveAll(downloaded)); err != nil {
			t.Error(err)
		}
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
