package chart

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestConfigs checks that the chart accepts podgauge's valid configs and those of the docs, with the MPS root of NVIDIA's chart, and rejects
// a config with keys of a newer version.
func TestConfigs(t *testing.T) {
	validate := newValidator(t)
	const mps = "mps: {root: /run/nvidia/mps}"
	err := fs.WalkDir(os.DirFS(root+"/internal/config/testdata"), ".", func(file string, entry fs.DirEntry, err error) error {
		isConfig := path.Ext(file) != ".txt" && !strings.Contains(file, "fuzz") // the others are many configs, each with its diagnostics
		if err != nil || entry.IsDir() || !isConfig {
			return err
		}
		err = validate(testfile.Read(t, root+"/internal/config/testdata/"+file), mps)
		if isNewer := path.Base(file) == "newer.yaml"; isNewer != (err != nil) {
			t.Errorf("%s: %v", file, err)
		}
		return nil
	})
	require.NoError(t, err)
	for _, match := range regexp.MustCompile("(?s)```yaml\n(version: v1.*?)```").FindAllStringSubmatch(testfile.Read(t, root+"/docs/reference/config.md"), -1) {
		if strings.Contains(match[1], "\nconfigs:") { // in the chart, each config is a file
			continue
		}
		if err := validate(match[1], mps); err != nil {
			t.Errorf("docs/reference/config.md: %v: %s", err, match[1])
		}
	}
}
