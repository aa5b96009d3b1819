package node

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

// LoadProgram imports an image of one static program into containerd, so that
// the tests need no registry and no image builder. Path is the program's path
// in the image.
func (n *RealNode) LoadProgram(ctx context.Context, name, program, path string, args ...string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	image, err := dockerArchive(name, content, path, args)
	if err != nil {
		return fmt.Errorf("create image %s: %w", name, err)
	}
	archive := n.Path(filepath.Base(program) + ".tar")
	if err := os.WriteFile(archive, image, 0o644); err != nil {
		return err
	}
	_, err = n.LoadImage(ctx, archive)
	return err
}

// importedName matches the name of an image in ctr's output.
var importedName = regexp.MustCompile(`(?m)^unpacking (\S+) `)

// LoadImage imports an archive with one image into containerd, and returns the
// image's name.
func (n *RealNode) LoadImage(ctx context.Context, archive string) (name string, err error) {
	archive, err = filepath.Abs(archive) // the node has a different working folder
	if err != nil {
		return "", err
	}
	out, err := n.Shell(ctx, fmt.Sprintf("ctr -a %s -n k8s.io images import %s", n.RuntimeSocket(), archive))
	if err != nil {
		return "", err
	}
	found := importedName.FindStringSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("import %s: no name in %q", archive, out)
	}
	return found[1], nil
}

// TagImage adds a name to an image in containerd.
func (n *RealNode) TagImage(ctx context.Context, image, name string) error {
	_, err := n.Shell(ctx, fmt.Sprintf("ctr -a %s -n k8s.io images tag --force %s %s", n.RuntimeSocket(), image, name))
	return err
}

// dockerArchive returns an image with a program and the mount points of a
// runtime, in the format of `docker save`.
func dockerArchive(name string, program []byte, path string, args []string) ([]byte, error) {
	layer, err := tarOf([]tarFile{
		{name: "bin/"},
		{name: "dev/"},
		{name: "etc/"},
		{name: "proc/"},
		{name: "sys/"},
		{name: "tmp/"},
		{path[1:], program},
	})
	if err != nil {
		return nil, err
	}
	config, configErr := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{path}, "Cmd": args, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{
			"type":     "layers",
			"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	manifest, manifestErr := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{name},
		"Layers": []string{"layer.tar"},
	}})
	if err := errors.Join(configErr, manifestErr); err != nil {
		return nil, err
	}
	return tarOf([]tarFile{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}})
}

// tarFile is a file, or a folder if the name ends with a slash.
type tarFile struct {
	name    string
	content []byte
}

func tarOf(files []tarFile) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
