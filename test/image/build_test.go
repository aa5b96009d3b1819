package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDocker stands for the program of that name: it has this driver and this store, and writes down what it was asked.
const fakeDocker = `#!/bin/sh
echo "$*" >> "$ASKED"
case "$*" in
    "buildx inspect") printf 'Name:          default\nDriver:        %s\n' "$DRIVER" ;;
    "info --format"*) echo "$STORE" ;;
esac
`

// dockerCalls is what build.sh asks of such a docker.
func dockerCalls(t *testing.T, driver, store string) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(fakeDocker), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", copyBuildScript(t), "amd64")
	log := filepath.Join(dir, "asked")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir, "BUILDER=docker", "VERSION=v9", "ASKED="+log, "DRIVER="+driver, "STORE="+store)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// copyBuildScript is build.sh in a folder of its own, so that no archive of the repository is removed.
func copyBuildScript(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "deploy", "image", "build.sh")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(read(t, "deploy/image/build.sh")), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDocker: docker as it comes writes no OCI archive, but a builder of another driver does, which is there for the build only.
func TestDocker(t *testing.T) {
	for name, c := range map[string]struct {
		driver, store string
		makes         bool
	}{
		"as it comes":               {"docker", "[[Backing Filesystem extfs]]", true},
		"with containerd's storage": {"docker", "[[driver-type io.containerd.snapshotter.v1]]", false},
		"with a builder":            {"docker-container", "[[Backing Filesystem extfs]]", false},
	} {
		t.Run(name, func(t *testing.T) {
			var made, used, removed bool
			built := 0
			all := dockerCalls(t, c.driver, c.store)
			for _, line := range all {
				made = made || line == "buildx create --name podgauge-image --driver docker-container"
				removed = line == "buildx rm podgauge-image" // comes last
				if strings.HasPrefix(line, "buildx build ") {
					built++
					used = strings.Contains(line, "--builder podgauge-image ")
				}
			}
			if built != 1 || made != c.makes || used != c.makes || removed != c.makes {
				t.Errorf("made %v, used %v, removed %v:\n%s", made, used, removed, strings.Join(all, "\n"))
			}
		})
	}
}

// TestNoSuchBuilder: what is wrong with BUILDER is said.
func TestNoSuchBuilder(t *testing.T) {
	cmd := exec.Command("sh", copyBuildScript(t), "amd64")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir(), "BUILDER=kaniko", "VERSION=v9")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "BUILDER=kaniko: want docker, podman or buildah") {
		t.Errorf("%v\n%s", err, out)
	}
}
