package chart

import (
	"os"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/yaml"
)

// maxPackageSize is how large the packed chart may be, in bytes. Helm keeps it in a Secret with all that it has made, and a Secret holds 1 MiB.
const maxPackageSize = 256 << 10

// TestPackage: what helm package packs is the chart without what only the repository needs, and small.
func TestPackage(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	path, err := util.Save(c, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxPackageSize {
		t.Errorf("it has %d bytes", info.Size())
	}
	packed, err := loader.LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(packed.Schema) == 0 || len(packed.Templates) != len(c.Templates) {
		t.Errorf("it has %d templates of %d", len(packed.Templates), len(c.Templates))
	}
	names := map[string]bool{}
	for _, f := range packed.Raw {
		names[f.Name] = true
		if strings.HasPrefix(f.Name, "examples/") {
			t.Errorf("%s is in it", f.Name)
		}
	}
	for name := range copiedFiles(t) {
		if !names["files/"+name] {
			t.Errorf("files/%s is not in it", name)
		}
	}
}

// TestArtifactHub checks that Artifact Hub shows the image that the chart installs.
func TestArtifactHub(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	var images []struct{ Name, Image string }
	if err := yaml.Unmarshal([]byte(c.Metadata.Annotations["artifacthub.io/images"]), &images); err != nil {
		t.Fatal(err)
	}
	want := c.Values["image"].(map[string]any)["repository"].(string) + ":" + c.Metadata.AppVersion
	if len(images) != 1 || images[0].Image != want {
		t.Errorf("images are %v, want %s", images, want)
	}
	if want := "v" + c.Metadata.Version; c.Metadata.AppVersion != want {
		t.Errorf("appVersion is %s, want %s", c.Metadata.AppVersion, want)
	}
}
