// Package podsfixture has the tests of internal/pods that need Kubernetes' types, which the module test/e2e keeps out of the daemon.
package podsfixture

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var update = flag.Bool("update", false, "write the pods as the kubelet's Pods API marshals them")

// TestFixtures checks that each NAME.pb in internal/pods/testdata is the pod of NAME.json, as the kubelet's Pods API marshals it.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("../../../internal/pods/testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pods: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var compact bytes.Buffer // as the API server stores fieldsV1
		if err := json.Compact(&compact, text); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var pod v1.Pod
		if err := json.Unmarshal(compact.Bytes(), &pod); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if same, err := json.MarshalIndent(pod, "", " "); err != nil || string(same)+"\n" != string(text) {
			t.Errorf("%s is not as Kubernetes marshals it: %v, want\n%s", file, err, same)
		}
		want, err := pod.Marshal()
		require.NoError(t, err)
		testfile.CheckGolden(t, *update, strings.TrimSuffix(file, ".json")+".pb", string(want))
	}
}
