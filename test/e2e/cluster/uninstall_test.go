//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// objects returns kind, namespace and name of all objects, except events, leases and the namespace of the pods.
func (s *clusterFixture) objects(ctx context.Context) ([]string, error) {
	kinds, err := s.Kubectl(ctx, "api-resources", "--verbs=list", "--output=name")
	if err != nil {
		return nil, err
	}
	changing := []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io"}
	names := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return slices.Contains(changing, kind) })
	out, err := s.Kubectl(ctx, "get", strings.Join(names, ","), "--all-namespaces", "--ignore-not-found",
		`--output=go-template={{range .items}}{{.apiVersion}} {{.kind}} {{.metadata.namespace}} {{.metadata.name}}{{"\n"}}{{end}}`)
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(strings.Split(strings.TrimSpace(out), "\n"), func(object string) bool {
		return strings.Contains(object, " "+teamNamespace+" ")
	})
	slices.Sort(all)
	return slices.Compact(all), nil
}

// uninstallRelease checks that uninstall removes all objects and keeps running pods. The files listed in docs/how-to/install.md remain.
func uninstallRelease(t *testing.T, s *clusterFixture) {
	running := s.trainers(t)
	with, err := s.objects(t.Context())
	must(t, err)
	begin := time.Now()
	s.helm(t, "uninstall", releaseName, "--namespace="+releaseNamespace, "--wait")
	await(t, "all objects of the release are removed", func(ctx context.Context) error {
		after, err := s.objects(ctx)
		left := slices.DeleteFunc(after, func(object string) bool { return slices.Contains(s.objectsBefore, object) })
		if len(left) > 0 {
			return fmt.Errorf("leftover objects: %q", left)
		}
		return err
	})
	printMeasurement(t, "helm uninstall → no objects of the release", fmt.Sprintf("%s; %d objects removed", formatSeconds(time.Since(begin)), len(with)-len(s.objectsBefore)))
	if left, err := filepath.Glob(filepath.Join(s.Node.KubeletDir(), "device-plugins", "podgauge*")); err != nil || len(left) > 0 {
		t.Errorf("leftovers in the device-plugin folder: %q, %v", left, err)
	}
	if specs, err := s.Node.Shell(t.Context(), "ls -A /var/run/cdi"); err != nil || specs != "k8s.device-plugin.nvidia.com-gpu.json\n" {
		t.Errorf("leftover CDI specs: %q, %v", specs, err)
	}
	if state, err := s.Node.Shell(t.Context(), "ls -A /var/lib/podgauge"); err != nil || state == "" {
		t.Errorf("stored state is missing: %q, %v", state, err)
	}
	await(t, "the node has no allocatable GPU", s.hasAllocatable(0))
	compareContainers(t, s.trainers(t), running)
}

// compareContainers checks that the pods have the same containers as before.
func compareContainers(t *testing.T, now, before []podObject) {
	t.Helper()
	containers := func(pods []podObject) []string {
		all := []string{}
		for _, p := range pods {
			for _, c := range p.Status.ContainerStatuses {
				all = append(all, fmt.Sprintf("%s %s %s %d %t", p.Metadata.UID, p.Status.Phase, c.ContainerID, c.RestartCount, c.Ready))
			}
		}
		slices.Sort(all)
		return all
	}
	if got, want := containers(now), containers(before); !slices.Equal(got, want) {
		t.Errorf("containers of the pods: got %q, want %q", got, want)
	}
}
