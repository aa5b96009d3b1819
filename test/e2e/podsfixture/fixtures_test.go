// Package podsfixture writes the pods for the tests of internal/pods: NAME.pb as marshaled by the kubelet's Pods API, and NAME.json as
// marshaled by Kubernetes, for comparison with the decoded pod.
//
// The module test/e2e keeps k8s.io/api out of the daemon.
package podsfixture

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the pods")

// TestFixtures checks that the files in internal/pods/testdata are up to date.
func TestFixtures(t *testing.T) {
	const dir = "../../../internal/pods/testdata"
	pods := fixturePods()
	for name, pod := range pods {
		wire, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.MarshalIndent(pod, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		for ending, want := range map[string][]byte{".pb": wire, ".json": append(text, '\n')} {
			file := filepath.Join(dir, name+ending)
			if *update {
				if err := os.WriteFile(file, want, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is out of date (make golden): %v", file, err)
			}
		}
	}
	for _, ending := range []string{"*.pb", "*.json"} {
		files, err := filepath.Glob(filepath.Join(dir, ending))
		if err != nil || len(files) != len(pods) {
			t.Errorf("files %s: got %d, want %d: %v", ending, len(files), len(pods), err)
		}
	}
}
