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

// Archive is the image of podgauge or podgauge-sim that make image leaves for this machine, below the repository's root.
func Archive(root, program string) string {
	return fmt.Sprintf("%s/bin/%s-image-%s.tar", root, program, runtime.GOARCH)
}

// LoadImage gives the node an OCI archive of one image, and returns the image's name.
func (c *Cluster) LoadImage(ctx context.Context, archive string) (name string, err error) {
	if name, err = imageName(archive); err != nil {
		return "", fmt.Errorf("read %s: %w", archive, err)
	}
	return name, c.Node.LoadImage(ctx, archive)
}

// imageName is that of an archive's first image.
func imageName(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for files := tar.NewReader(f); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("it has no index.json")
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
		return "", errors.New("its image has no name")
	}
}
