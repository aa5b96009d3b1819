package chart

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestConfigs checks that the chart accepts podgauge's valid configs, with the MPS root of NVIDIA's chart, and rejects a config with keys
// of a newer version.
func TestConfigs(t *testing.T) {
	const newer = "newer.yaml"
	texts := map[string]string{}
	err := filepath.WalkDir(root+"/internal/config/testdata", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.Contains(path, "fuzz") {
			texts[filepath.Base(path)] = read(t, path)
		}
		return err
	})
	if err != nil || texts[newer] == "" {
		t.Fatal(err, len(texts))
	}
	for i, match := range regexp.MustCompile("(?s)```yaml\n(version: v1.*?)```").FindAllStringSubmatch(read(t, root+"/docs/reference/config.md"), -1) {
		if !strings.Contains(match[1], "\nconfigs:") { // in the chart, each config is a file
			texts["example-"+string(rune('a'+i))] = match[1]
		}
	}
	for name, text := range texts {
		_, _, err := renderChart("mps: {root: /run/nvidia/mps}", string(mustJSON(t, map[string]any{"config": map[string]any{"map": map[string]string{name: text}}})))
		switch {
		case name != newer && err != nil:
			t.Errorf("%s: %v", name, err)
		case name == newer && (err == nil || !strings.Contains(err.Error(), "config.map.newer.yaml:")):
			t.Errorf("%s: %v", name, err)
		}
	}
}
