package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestSummary checks the text of each kind of setting, and that defaults are
// left out.
func TestSummary(t *testing.T) {
	const text = `version: v1
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
      - {name: nvidia.com/gpu, replicas: 4}
      - {name: mig-1g.10gb, replicas: 2, rename: small, devices: 3}
      - {name: nvidia.com/gpu, replicas: 8, devices: [0, "model:*T4*"]}
resources: {gpus: [{pattern: "*T4*", name: t4}]}
podgauge: {xids: {94: ignore, 31: unhealthy}, claims: {ignore: [monitoring/*]}}
`
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := NewBuilder(func(name string) (string, bool) {
		value, set := map[string]string{
			"CONFIG_FILE": path, "PASS_DEVICE_SPECS": "true",
			"DEVICE_LIST_STRATEGY": "envvar,cdi-cri",
		}[name]
		return value, set
	}).Load()
	if err != nil {
		t.Fatal(err)
	}
	summary := loaded.Summary()
	for i := range summary {
		summary[i].Origin = strings.TrimPrefix(summary[i].Origin, filepath.Dir(path)+"/")
	}
	want := []GivenSetting{
		{"mig-strategy", "mixed", "config.yaml:2"},
		{"pass-device-specs", "true", "PASS_DEVICE_SPECS"},
		{"device-list-strategy", "envvar, cdi-cri", "DEVICE_LIST_STRATEGY"},
		{
			"sharing.timeSlicing", "nvidia.com/gpu: 4 replicas of each device as nvidia.com/gpu.shared, " +
				"nvidia.com/mig-1g.10gb: 2 replicas of each of the first 3 as nvidia.com/small, " +
				"nvidia.com/gpu: 8 replicas of each of 0, model:*T4* as nvidia.com/gpu.shared", "config.yaml:4",
		},
		{"resources.gpus", "*T4* as nvidia.com/t4", "config.yaml:10"},
		{"podgauge.xids", "31 unhealthy, 94 ignore", "config.yaml:11"},
		{"ignore-claims", "monitoring/*/*", "config.yaml:11"},
	}
	for i, w := range want {
		if i >= len(summary) || !reflect.DeepEqual(summary[i], w) {
			t.Fatalf("got %+v\nwant %+v", summary, want)
		}
	}
}
