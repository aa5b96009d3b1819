package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
