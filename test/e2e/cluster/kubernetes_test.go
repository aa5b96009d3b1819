//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	configLabel = "nvidia.com/device-plugin.config"
	// describeLimit is the maximum time from an Xid to its event in kubectl describe.
	describeLimit = 5 * time.Second
	outage        = time.Minute // without the API server
)

// kubernetesValues enable the features with the API server, with a config for shared GPUs.
const kubernetesValues = `
kubernetes: {events: true, nodeCondition: true, deviceTaints: true, pods: true, configLabel: nvidia.com/device-plugin.config, adminClaims: true}
metrics: {podUID: true, labelsAllowlist: [team]}
config:
  default: whole
  map:
    whole: "version: v1"
    shared: |
      version: v1
      sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}
`

// TestKubernetesObjects tests events, node condition, config label and the rights of podgauge-kube, on a node with a kubelet without Pods API.
func TestKubernetesObjects(t *testing.T) {
	o := cluster.Options()
	o.KubeletVersion = programs.OlderVersion
	s := newClusterFixture(t, o)
	s.kubectl(t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
	s.installMonitoringKinds(t)
	_, err := s.Node.LoadImage(t.Context(), cluster.Archive(repoRoot, "podgauge-kube"))
	must(t, err)
	values := s.kubernetesValues()
	must(t, os.WriteFile(values, []byte(kubernetesValues), 0o644))
	s.helm(t, "install", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values, "--values="+values)
	await(t, "the DaemonSet is ready", s.daemonSet)
	await(t, "the node has GPUs", s.hasAllocatable(gpuCount))
	s.awaitController(t)
	s.runSteps(
		t,
		clusterStep{"only the sidecar has a token", onlySidecarToken},
		clusterStep{"refused requests", refusedRequests},
		clusterStep{"config by label", configByLabel},
		clusterStep{"device retired and trusted", retiredGPU},
		clusterStep{"events and condition of a failing pod", failingPod},
		clusterStep{"API server down", apiServerDown},
		clusterStep{"node condition disabled", conditionDisabled},
	)
}

// awaitController waits until the controller's current pods are available, and older ones are gone.
func (s *clusterFixture) awaitController(t *testing.T) {
	t.Helper()
	s.kubectl(t, "rollout", "status", "--namespace="+releaseNamespace, "deployment/"+releaseName+"-kube", "--timeout="+waitTimeout.String())
}

// configByLabel changes the node's config label and checks that the node's number of GPUs changes without a restart of podgauge.
func configByLabel(t *testing.T, s *clusterFixture) {
	before, err := s.podgaugePod(t.Context())
	must(t, err)
	for _, step := range []struct {
		label string
		want  int
	}{{configLabel + "=shared", 2 * gpuCount}, {configLabel + "=missing", 2 * gpuCount}, {configLabel + "-", gpuCount}} {
		begin := time.Now()
		s.kubectl(t, "label", "node", node.Name, "--overwrite", step.label)
		if step.label == configLabel+"=missing" {
			time.Sleep(5 * time.Second)
		}
		await(t, "the node has the config's GPUs", s.hasAllocatable(step.want))
		printMeasurement(t, "label "+step.label+" → the node's status has the config's GPUs", formatSeconds(time.Since(begin)))
	}
	after, err := s.podgaugePod(t.Context())
	must(t, err)
	compareContainers(t, []podObject{after}, []podObject{before})
}

// retireNote is the operator's reason.
const retireNote = "fan is noisy, ticket 4711"

// retiredGPU retires the GPU of a pod from podgauge's container, replaces podgauge's pod, and trusts the GPU again.
func retiredGPU(t *testing.T, s *clusterFixture) {
	_, gpu := s.runGPUPod(t, "tenant")
	retired := fmt.Sprintf("GPU %d (%s) was retired by an operator: %s", gpu, uuid(gpu), retireNote)
	inCondition := s.hasCondition("True", fmt.Sprintf("GPU %d (%s): Retired by an operator. %s", gpu, uuid(gpu), retireNote))
	device := func(args ...string) string {
		command := []string{"exec", "--namespace=" + releaseNamespace, "daemonset/" + releaseName, "--", "podgauge", "device"}
		return s.kubectl(t, append(command, args...)...)
	}
	begin := time.Now()
	out := device("retire", fmt.Sprint(gpu), "--reason="+retireNote)
	if want := fmt.Sprintf("GPU %d (%s) is retired: %s\nallocated until the pods end: team/tenant\n", gpu, uuid(gpu), retireNote); out != want {
		t.Errorf("retire printed %q, want %q", out, want)
	}
	await(t, "the node lacks the GPU", s.hasAllocatable(gpuCount-1))
	printMeasurement(t, "podgauge device retire → the node's status lacks the GPU", formatSeconds(time.Since(begin)))
	await(t, "kubectl describe pod has the reason", s.describes("pod tenant --namespace="+teamNamespace, retired))
	await(t, "kubectl describe node has the reason", s.describes("node "+node.Name, retired))
	await(t, "the node's condition has the reason", inCondition)
	if p, err := s.pods(t.Context(), teamNamespace, "team=red"); err != nil || len(p) != 1 || p[0].Status.Phase != "Running" {
		t.Errorf("pod with the retired GPU is not running: %+v, %v", p, err)
	}
	s.kubectl(t, "delete", "pod", "tenant", "--namespace="+teamNamespace, "--wait")

	s.kubectl(t, "delete", "pod", "--all", "--namespace="+releaseNamespace, "--wait")
	await(t, "the DaemonSet is ready", s.daemonSet)
	await(t, "the node's condition has the reason after a restart", inCondition)
	must(t, s.hasAllocatable(gpuCount-1)(t.Context()))

	if out, want := device("trust", uuid(gpu)), fmt.Sprintf("GPU %d (%s) is healthy\nthe retirement has ended\n", gpu, uuid(gpu)); out != want {
		t.Errorf("trust printed %q, want %q", out, want)
	}
	await(t, "the node has the GPU", s.hasAllocatable(gpuCount))
	await(t, "the node has no fault", s.hasCondition("False", fmt.Sprintf("%d GPUs healthy.", gpuCount)))
	var events struct{ Items []struct{ Count int } }
	must(t, s.Get(t.Context(), "/api/v1/events?fieldSelector=reason%3DGPURetired", &events))
	if len(events.Items) != 2 || events.Items[0].Count != 1 || events.Items[1].Count != 1 {
		t.Errorf("GPURetired events of node and pod: got %+v, want two with count 1", events.Items)
	}
}

func failure(gpu int) string {
	return fmt.Sprintf("GPU %d (%s) failed: Xid 79, GPU has fallen off the bus. Reboot the node.", gpu, uuid(gpu))
}

// describes returns an error unless kubectl describe prints a text.
func (s *clusterFixture) describes(object, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, append([]string{"describe"}, strings.Fields(object)...)...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("kubectl describe %s lacks %q:\n%s", object, want, out)
		}
		return err
	}
}

// failingPod checks labels and UID of a pod, then the events and the node condition of an Xid that ends the pod.
func failingPod(t *testing.T, s *clusterFixture) {
	p, gpu := s.runGPUPod(t, "failing")
	await(t, "/metrics has UID and label of the pod", func(ctx context.Context) error {
		all, err := s.series(ctx, "nvidia_gpu_allocation_info")
		for _, l := range all {
			if l["pod"] == "failing" && l["pod_uid"] == p.Metadata.UID && l["label_team"] == "red" {
				return nil
			}
		}
		return fmt.Errorf("allocations are %v, %w", all, err)
	})
	begin := time.Now()
	must(t, s.machine.Event(gpu, "xid 79"))
	s.kill(t, p)
	await(t, "kubectl describe pod names the GPU", s.describes("pod failing --namespace="+teamNamespace, failure(gpu)))
	took := time.Since(begin)
	printMeasurement(t, "Xid 79 and end of the pod → kubectl describe pod names the GPU", fmt.Sprintf("%s; limit %s", formatSeconds(took), formatSeconds(describeLimit)))
	if took > describeLimit {
		t.Errorf("event in kubectl describe: got after %s, want within %s", took, describeLimit)
	}
	await(t, "kubectl describe node names the GPU", s.describes("node "+node.Name, failure(gpu)))
	await(t, "the node's condition names the GPU", s.hasCondition("True", uuid(gpu)))
	printMeasurement(t, "Xid 79 → node condition", formatSeconds(time.Since(begin)))
	await(t, "the incident has UID and exit code", s.hasTermination(p, gpu))
}

// hasCondition returns an error unless the node's condition has a status, and a text in the message.
func (s *clusterFixture) hasCondition(status, text string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "node", node.Name, `--output=jsonpath={.status.conditions[?(@.type=="GPUUnhealthy")]}`)
		if err == nil && (!strings.Contains(out, `"status":"`+status+`"`) || !strings.Contains(out, text)) {
			err = fmt.Errorf("condition is %s, want %s with %q", out, status, text)
		}
		return err
	}
}

// hasTermination returns an error unless an incident of a GPU has the pod with UID and exit code 137.
func (s *clusterFixture) hasTermination(p podObject, gpu int) func(context.Context) error {
	return func(ctx context.Context) error {
		body, err := s.get(ctx, "/api/v1/incidents?reason=xid_79&device="+uuid(gpu))
		if err == nil && (!strings.Contains(body, p.Metadata.UID) || !strings.Contains(strings.ReplaceAll(body, " ", ""), `"exit_code":137`)) {
			err = fmt.Errorf("incidents are %s", body)
		}
		return err
	}
}

// apiServerDown kills the API server for a minute. Metrics and health continue, and faults of the outage are reported afterwards.
func apiServerDown(t *testing.T, s *clusterFixture) {
	p, gpu := s.runGPUPod(t, "survivor")
	podgauge, err := s.podgaugePod(t.Context())
	must(t, err)
	must(t, s.StopAPIServer(t.Context()))
	begin := time.Now()
	must(t, s.machine.Event(gpu, "xid 79"))
	s.kill(t, p)
	unhealthy := regexp.MustCompile(`nvidia_gpu_healthy\{[^}]*` + uuid(gpu) + `[^}]*\} 0\n`)
	scrapes := 0
	for ; time.Since(begin) < outage; time.Sleep(time.Second) {
		text, err := get(t.Context(), podgauge.url()+"/metrics")
		if err != nil {
			t.Fatalf("scrape %s after the end of the API server: %v", time.Since(begin), err)
		}
		if scrapes++; scrapes > 3 && !unhealthy.MatchString(text) {
			t.Errorf("GPU %d is not unhealthy after %s", gpu, time.Since(begin))
		}
	}
	printMeasurement(t, "API server down for a minute: successful scrapes", fmt.Sprint(scrapes))
	must(t, s.StartAPIServer(t.Context()))
	begin = time.Now()
	await(t, "kubectl describe pod has the event of the outage", s.describes("pod survivor --namespace="+teamNamespace, failure(gpu)))
	await(t, "the node's condition has the fault of the outage", s.hasCondition("True", uuid(gpu)))
	await(t, "the incident has UID and exit code", s.hasTermination(p, gpu))
	printMeasurement(t, "API server up → event, condition and exit code of the outage", formatSeconds(time.Since(begin)))
	await(t, "the node lacks the GPU", s.hasAllocatable(gpuCount-2))
}

func (s *clusterFixture) kubernetesValues() string { return s.Node.Path("kubernetes.yaml") }

// conditionDisabled disables the node condition and removes the remaining condition as docs/how-to/kubernetes-objects.md describes.
func conditionDisabled(t *testing.T, s *clusterFixture) {
	s.helm(t, "upgrade", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values, "--values="+s.kubernetesValues(),
		"--set=kubernetes.nodeCondition=false")
	await(t, "the DaemonSet is ready", s.daemonSet)
	s.awaitController(t)
	must(t, s.hasCondition("True", "GPU")(t.Context()))
	page := testfile.Read(t, repoRoot+"/docs/how-to/kubernetes-objects.md")
	_, command, _ := strings.Cut(page, "<!-- remove-condition -->\n```sh\n")
	command, _, found := strings.Cut(command, "```\n<!-- /remove-condition -->")
	if !found {
		t.Fatal("docs/how-to/kubernetes-objects.md has no command")
	}
	kubectl, err := programs.ControlPlane.Binary("kubectl")
	must(t, err)
	shell := exec.CommandContext(t.Context(), "sh", "-euc", command)
	shell.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "HOME="+s.Node.Path("home"), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	all := s.kubectl(t, "get", "node", node.Name, "--output=jsonpath={.status.conditions[*].type}")
	if strings.Contains(all, "GPUUnhealthy") || !strings.Contains(all, "Ready") {
		t.Errorf("conditions are %s", all)
	}
}
