//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// streamManifest is a stream of short pods with a GPU each, four at a time.
const streamManifest = `
apiVersion: batch/v1
kind: Job
metadata: {name: stream, namespace: team}
spec:
  parallelism: 4
  completions: 10000
  backoffLimit: 10000
  template:
    metadata: {labels: {app: stream}}
    spec:
      restartPolicy: Never
      containers:
        - {name: main, image: "@IMAGE@", imagePullPolicy: Never, args: [exit, "0"], resources: {limits: {nvidia.com/gpu: 1}}}
`

// TestSurge updates podgauge under a stream of pods, first by the chart's default, then with maxSurge: no GPU is missing at any time and no
// pod is rejected.
func TestSurge(t *testing.T) {
	s := newClusterFixture(t, cluster.Options())
	s.kubectl(t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
	s.installMonitoringKinds(t)
	s.helm(t, "install", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values)
	await(t, "the DaemonSet is ready", s.daemonSet)
	await(t, "the node has GPUs", s.hasAllocatable(gpuCount))
	t.Run("maxUnavailable", func(t *testing.T) { s.updateUnderStream(t, 10*time.Second, "--set=log.level=debug") })
	t.Run("maxSurge", func(t *testing.T) {
		s.updateUnderStream(t, 0, "--set=log.level=info", "--set-string=updateStrategy.rollingUpdate.maxSurge=100%")
	})
}

// updateUnderStream updates the release, and checks the longest time with fewer GPUs and, if none is allowed, the stream's pods.
func (s *clusterFixture) updateUnderStream(t *testing.T, limit time.Duration, values ...string) {
	old, err := s.podgaugePod(t.Context())
	must(t, err)
	s.apply(t, strings.ReplaceAll(streamManifest, "@IMAGE@", node.TestImage))
	await(t, "pods of the stream have ended", s.hasStreamed(8))
	gaps := watch(t, s.capacity(limit))
	begin := time.Now()
	s.helm(t, append([]string{"upgrade", releaseName, chartDir, "--namespace=" + releaseNamespace, "--values=" + s.values}, values...)...)
	await(t, "podgauge's pod is replaced", func(ctx context.Context) error {
		now, err := s.podgaugePod(ctx)
		if err == nil && now.Metadata.UID == old.Metadata.UID {
			err = fmt.Errorf("pod %s is the old one", now.Metadata.Name)
		}
		return err
	})
	printMeasurement(t, "helm upgrade → the old pod is gone", formatSeconds(time.Since(begin)))
	await(t, "the DaemonSet is ready", s.daemonSet)
	await(t, "the node has all GPUs", s.hasAllocatable(gpuCount))
	must(t, s.hasStreamed(16)(t.Context()))
	for _, g := range gaps {
		g.end(t)
	}
	pods, err := s.pods(t.Context(), teamNamespace, "app=stream")
	must(t, err)
	rejected := 0
	for _, p := range pods {
		if p.Status.Phase == "Failed" {
			rejected++
		}
	}
	printMeasurement(t, "… pods of the stream; rejected", fmt.Sprintf("%d; %d", len(pods), rejected))
	if limit == 0 && rejected > 0 {
		t.Errorf("rejected pods: got %d of %d, want none", rejected, len(pods))
	}
	s.kubectl(t, "delete", "job/stream", "--namespace="+teamNamespace, "--cascade=foreground")
}

// hasStreamed returns a condition for await: this number of the stream's pods has succeeded.
func (s *clusterFixture) hasStreamed(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		pods, err := s.pods(ctx, teamNamespace, "app=stream")
		succeeded := 0
		for _, p := range pods {
			if p.Status.Phase == "Succeeded" {
				succeeded++
			}
		}
		if err == nil && succeeded < n {
			err = fmt.Errorf("%d of %d pods have succeeded, want %d", succeeded, len(pods), n)
		}
		return err
	}
}
