//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// retireNote is the operator's reason.
const retireNote = "fan is noisy, ticket 4711"

// retiredGPU retires the GPU of a pod from podgauge's container, replaces podgauge's pod, and trusts the GPU again.
func retiredGPU(ctx context.Context, t *testing.T, s *clusterFixture) {
	_, gpu := s.runTrainingPod(ctx, t, "tenant")
	retired := fmt.Sprintf("GPU %d (%s) was retired by an operator: %s", gpu, uuid(gpu), retireNote)
	begin := time.Now()
	out := s.device(ctx, t, "retire", fmt.Sprint(gpu), "--reason="+retireNote)
	if want := fmt.Sprintf("GPU %d (%s) is retired: %s\nallocated until the pods end: team/tenant\n", gpu, uuid(gpu), retireNote); out != want {
		t.Errorf("retire printed %q, want %q", out, want)
	}
	await(ctx, t, "the node lacks the GPU", s.hasAllocatable(gpuCount-1))
	printMeasurement(t, "podgauge device retire → the node's status lacks the GPU", formatSeconds(time.Since(begin)))
	await(ctx, t, "kubectl describe pod has the reason", s.describes("pod tenant --namespace="+teamNamespace, retired))
	await(ctx, t, "kubectl describe node has the reason", s.describes("node "+node.Name, retired))
	await(ctx, t, "metrics, API and kubectl podgauge have the reason", s.showsRetired(gpu))
	if p, err := s.pods(ctx, teamNamespace, "team=red"); err != nil || len(p) != 1 || p[0].Status.Phase != "Running" {
		t.Errorf("pod with the retired GPU is not running: %+v, %v", p, err)
	}
	s.kubectl(ctx, t, "delete", "pod", "tenant", "--namespace="+teamNamespace, "--wait")
	s.checkNotScheduled(ctx, t, gpu)

	s.kubectl(ctx, t, "delete", "pod", "--all", "--namespace="+releaseNamespace, "--wait")
	await(ctx, t, "the DaemonSet is ready", s.daemonSet)
	await(ctx, t, "metrics, API and kubectl podgauge have the reason after a restart", s.showsRetired(gpu))
	if err := s.hasAllocatable(gpuCount - 1)(ctx); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	s.checkTrusted(ctx, t, gpu)
}

// device runs `podgauge device` in the pod of the DaemonSet.
func (s *clusterFixture) device(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	command := []string{"exec", "--namespace=" + releaseNamespace, "daemonset/" + releaseName, "--", "podgauge", "device"}
	return s.kubectl(ctx, t, append(command, args...)...)
}

// showsRetired returns an error unless the condition, /metrics, /api and kubectl podgauge show a GPU as retired, with the reason.
func (s *clusterFixture) showsRetired(gpu int) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.hasCondition("True", fmt.Sprintf("GPU %d (%s): Retired by an operator. %s", gpu, uuid(gpu), retireNote))(ctx); err != nil {
			return err
		}
		families, err := s.scrapeOne(ctx)
		if err != nil {
			return err
		}
		if all := labelSets(families["nvidia_gpu_unhealthy_info"]); len(all) != 1 || all[0]["uuid"] != uuid(gpu) || all[0]["reason"] != "retired" {
			return fmt.Errorf("nvidia_gpu_unhealthy_info: got %v, want %s with reason retired", all, uuid(gpu))
		}
		if err := s.apiShowsRetired(ctx, gpu); err != nil {
			return err
		}
		for command, note := range map[string]string{"status": "retired: " + retireNote, "incidents": retireNote} {
			out, errs, err := s.runPlugin(ctx, "--podgauge-namespace="+releaseNamespace, command, "--no-headers")
			lines := slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return !strings.Contains(line, note) })
			if err != nil || len(lines) != 1 || !strings.Contains(lines[0], uuid(gpu)) || !strings.Contains(lines[0], "unhealthy") {
				return fmt.Errorf("kubectl podgauge %s: %w\n%s%s", command, err, out, errs)
			}
		}
		return nil
	}
}

// apiShowsRetired returns an error unless a GPU is retired in /api/v1/devices, and has one incident of the retirement.
func (s *clusterFixture) apiShowsRetired(ctx context.Context, gpu int) error {
	url, err := s.podgaugeURL(ctx)
	if err != nil {
		return err
	}
	var response struct {
		Devices   []struct{ Device, Health, Reason, Note string }
		Incidents []struct{ Device, Reason, Note string }
	}
	for _, path := range []string{"/api/v1/devices", "/api/v1/incidents?reason=retired"} {
		body, err := get(ctx, url+path)
		if err == nil {
			err = json.Unmarshal([]byte(body), &response)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if d := response.Devices[gpu]; d.Device != uuid(gpu) || d.Health != "unhealthy" || d.Reason != "retired" || d.Note != retireNote {
		return fmt.Errorf("device: got %+v, want GPU %d retired with note %q", d, gpu, retireNote)
	}
	if i := response.Incidents; len(i) != 1 || i[0].Device != uuid(gpu) || i[0].Note != retireNote {
		return fmt.Errorf("incidents: got %+v, want one with note %q", i, retireNote)
	}
	return nil
}

// checkNotScheduled runs a pod with all other GPUs, while a pod with all GPUs is pending.
func (s *clusterFixture) checkNotScheduled(ctx context.Context, t *testing.T, gpu int) {
	t.Helper()
	s.apply(ctx, t, gpuPod("all", gpuCount))
	await(ctx, t, "the pod with all GPUs is pending", s.describes("pod all --namespace="+teamNamespace, "1 Insufficient "+gpuResource))
	s.apply(ctx, t, gpuPod("others", gpuCount-1))
	s.waitPodReady(ctx, t, "others")
	owners, err := s.Node.Owners(ctx, gpuResource)
	if err != nil || len(owners) != gpuCount-1 || owners[uuid(gpu)].Pod != "" {
		t.Errorf("owners without retired GPU %d: got %v, %v, want %d", gpu, owners, err, gpuCount-1)
	}
}

// checkTrusted trusts a GPU and checks that the pending pod gets the GPU.
func (s *clusterFixture) checkTrusted(ctx context.Context, t *testing.T, gpu int) {
	t.Helper()
	out := s.device(ctx, t, "trust", uuid(gpu))
	if want := fmt.Sprintf("GPU %d (%s) is healthy\nthe retirement has ended\n", gpu, uuid(gpu)); out != want {
		t.Errorf("trust printed %q, want %q", out, want)
	}
	await(ctx, t, "the node has the GPU", s.hasAllocatable(gpuCount))
	await(ctx, t, "kubectl describe node has the recovery", s.describes("node "+node.Name, fmt.Sprintf("GPU %d (%s) recovered after: Retired by an operator.", gpu, uuid(gpu))))
	await(ctx, t, "the node has no fault", s.hasCondition("False", fmt.Sprintf("%d GPUs healthy.", gpuCount)))
	s.kubectl(ctx, t, "delete", "pod", "others", "--namespace="+teamNamespace, "--wait")
	s.waitPodReady(ctx, t, "all")
	owners, err := s.Node.Owners(ctx, gpuResource)
	if err != nil || len(owners) != gpuCount {
		t.Errorf("owners: got %v, %v, want %d", owners, err, gpuCount)
	}
	s.kubectl(ctx, t, "delete", "pod", "all", "--namespace="+teamNamespace, "--wait")
	s.checkRetiredOnce(ctx, t)
}

// checkRetiredOnce checks that the restart repeated no event: the node and the pod have one event each.
func (s *clusterFixture) checkRetiredOnce(ctx context.Context, t *testing.T) {
	t.Helper()
	var events struct {
		Items []struct {
			Reason string
			Count  int
		}
	}
	if err := s.Get(ctx, "/api/v1/events?fieldSelector=reason%3DGPURetired", &events); err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 2 || events.Items[0].Count != 1 || events.Items[1].Count != 1 {
		t.Errorf("GPURetired events: got %+v, want two with count 1", events.Items)
	}
}
