package cluster

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Archive returns the path of `make image`'s archive for this machine, relative to the repository's root.
func Archive(root, program string) string {
	return fmt.Sprintf("%s/bin/%s-image-%s.tar", root, program, runtime.GOARCH)
}

// LoadImage imports an OCI archive with one image into the node and returns the image's name.
func (c *Cluster) LoadImage(ctx context.Context, archive string) (name string, err error) {
	if name, err = imageName(archive); err != nil {
		return "", fmt.Errorf("read %s: %w", archive, err)
	}
	return name, c.Node.LoadImage(ctx, archive)
}

// imageName returns the name of an archive's first image.
func imageName(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for files := tar.NewReader(f); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("index.json is missing")
		}
		if err != nil {
			return "", err
		}
		if header.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(files).Decode(&index); err != nil {
			return "", err
		}
		for _, m := range index.Manifests {
			if name := m.Annotations["org.opencontainers.image.ref.name"]; name != "" {
				return name, nil
			}
		}
		return "", errors.New("image has no name")
	}
}
