// Package image checks podgauge's container images, given as OCI archives, and runs them.
//
// The tests read the archives directly, without a container runtime, to check the files as delivered.
package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImages checks the archives of the environment's PODGAUGE_IMAGES.
func TestImages(t *testing.T) {
	for archive, img := range deliveredImages(t) {
		t.Run(archive, func(t *testing.T) {
			t.Logf("%.1f MB, %.1f MB unpacked", float64(img.compressed)/1e6, float64(img.uncompressed)/1e6)
			for _, check := range imageChecks {
				t.Run(check.name, func(t *testing.T) {
					found, err := check.run(img)
					if err != nil {
						t.Error(err)
					}
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
