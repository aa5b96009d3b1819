// Command podsfixture writes the pods for the tests of internal/pods: NAME.pb as marshaled by the kubelet's Pods API, and NAME.json as marshaled
// by Kubernetes, for comparison with the decoded pod.
//
//	cd test/external/podsfixture && go run . ../../../internal/pods/testdata
//
// The module test/external keeps k8s.io/api out of the daemon.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: podsfixture FOLDER")
		os.Exit(2)
	}
	if err := writeFixtures(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeFixtures(dir string) error {
	all, err := fixtureFiles()
	if err != nil {
		return err
	}
	for name, content := range all {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fixtureFiles are the contents by file name.
func fixtureFiles() (map[string][]byte, error) {
	all := map[string][]byte{}
	for name, pod := range fixturePods() {
		wire, err := pod.Marshal()
		if err != nil {
			return nil, fmt.Errorf("marshal %s: %w", name, err)
		}
		text, err := json.MarshalIndent(pod, "", " ")
		if err != nil {
			return nil, fmt.Errorf("marshal %s: %w", name, err)
		}
		all[name+".pb"], all[name+".json"] = wire, append(text, '\n')
	}
	return all, nil
}
