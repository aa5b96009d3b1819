package chart

import (
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// maxPackageSize limits the packed chart, in bytes. Helm stores the chart and its objects in a Secret, which is limited to 1 MiB.
const maxPackageSize = 256 << 10

// TestPackage checks that the packed chart is small, complete and without files for the repository only.
func TestPackage(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	path, err := util.Save(c, t.TempDir())
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	if info.Size() > maxPackageSize {
		t.Errorf("size of the package: got %d bytes, want at most %d", info.Size(), maxPackageSize)
	}
	packed, err := loader.LoadFile(path)
	require.NoError(t, err)
	if len(packed.Schema) == 0 || len(packed.Templates) != len(c.Templates) {
		t.Errorf("templates in the package: got %d, want %d; schema: %d bytes", len(packed.Templates), len(c.Templates), len(packed.Schema))
	}
	names := map[string]bool{}
	for _, f := range packed.Raw {
		names[f.Name] = true
		if strings.HasPrefix(f.Name, "examples/") {
			t.Errorf("the package has %s", f.Name)
		}
	}
	for name := range chartCopies(t) {
		if !names["files/"+name] {
			t.Errorf("the package lacks files/%s", name)
		}
	}
}

// TestArtifactHub checks that Artifact Hub shows the images that the chart installs.
func TestArtifactHub(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	var images []struct{ Name, Image string }
	require.NoError(t, yaml.Unmarshal([]byte(c.Metadata.Annotations["artifacthub.io/images"]), &images))
	var got, want []string
	for _, image := range images {
		got = append(got, image.Image)
	}
	for _, values := range []any{c.Values["image"], c.Values["kubernetes"].(map[string]any)["image"]} {
		want = append(want, values.(map[string]any)["repository"].(string)+":"+c.Metadata.AppVersion)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got images %v, want %v", got, want)
	}
	if want := "v" + c.Metadata.Version; c.Metadata.AppVersion != want {
		t.Errorf("appVersion is %s, want %s", c.Metadata.AppVersion, want)
	}
}
