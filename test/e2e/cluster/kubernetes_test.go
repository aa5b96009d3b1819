//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

const (
	configLabel = "nvidia.com/device-plugin.config"
	// describeLimit is the maximum time from an Xid to its event in kubectl describe.
	describeLimit = 5 * time.Second
	outage        = time.Minute // without the API server
)

// kubernetesValues enable the features with the API server, with a config for shared GPUs.
const kubernetesValues = `
kubernetes: {events: true, nodeCondition: true, pods: true, configLabel: nvidia.com/device-plugin.config}
metrics: {podUID: true, labelsAllowlist: [team]}
config:
  default: whole
  map:
    whole: "version: v1"
    shared: |
      version: v1
      sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}
`

// trainingPod is a pod with GPUs that ends with its container.
const trainingPod = `
apiVersion: v1
kind: Pod
metadata: {name: @NAME@, namespace: team, labels: {team: red}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - {name: main, image: "@IMAGE@", imagePullPolicy: Never, args: [stubborn], resources: {limits: {nvidia.com/gpu: @GPUS@}}}
`

// gpuPod returns the manifest of a trainingPod with GPUs.
func gpuPod(name string, gpus int) string {
	return strings.NewReplacer("@NAME@", name, "@IMAGE@", node.TestImage, "@GPUS@", fmt.Sprint(gpus)).Replace(trainingPod)
}

// TestKubernetesObjects tests events, node condition and config label, on a node with a kubelet without Pods API.
func TestKubernetesObjects(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	o := cluster.Options()
	o.KubeletVersion = programs.OlderVersion
	s := newClusterFixtureOf(ctx, t, o)
	s.kubectl(ctx, t, "label", "namespace", releaseNamespace, "pod-security.kubernetes.io/enforce=privileged")
	if err := s.installMonitoringKinds(ctx); err != nil {
		t.Fatal(err)
	}
	values := s.kubernetesValues()
	if err := os.WriteFile(values, []byte(kubernetesValues), 0o644); err != nil {
		t.Fatal(err)
	}
	s.helm(ctx, t, "install", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values, "--values="+values)
	await(ctx, t, "the DaemonSet is ready", s.daemonSet)
	await(ctx, t, "the node has GPUs", s.hasAllocatable(gpuCount))
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T, *clusterFixture)
	}{
		{"config by label", configByLabel},
		{"device retired and trusted", retiredGPU},
		{"events and condition of a failing pod", failingPod},
		{"API server down", apiServerDown},
		{"permissions removed", permissionsRemoved},
		{"node condition disabled", conditionDisabled},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t, s) }) {
			return // later steps depend on this step
		}
	}
}

// configByLabel changes the node's config label and checks that the node's number of GPUs changes without a restart of podgauge.
func configByLabel(ctx context.Context, t *testing.T, s *clusterFixture) {
	before, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		label string
		want  int
	}{{configLabel + "=shared", 2 * gpuCount}, {configLabel + "=missing", 2 * gpuCount}, {configLabel + "-", gpuCount}} {
		begin := time.Now()
		s.kubectl(ctx, t, "label", "node", node.Name, "--overwrite", step.label)
		if step.label == configLabel+"=missing" {
			time.Sleep(5 * time.Second)
		}
		await(ctx, t, "the node has the config's GPUs", s.hasAllocatable(step.want))
		printMeasurement(t, "label "+step.label+" → the node's status has the config's GPUs", formatSeconds(time.Since(begin)))
	}
	after, err := s.podgaugePods(ctx)
	if err != nil || after[0].Metadata.UID != before[0].Metadata.UID || after[0].Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("podgauge restarted: %+v, %v", after, err)
	}
}

func (s *clusterFixture) waitPodReady(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	s.kubectl(ctx, t, "wait", "--namespace="+teamNamespace, "pod/"+name, "--for=condition=Ready", "--timeout="+waitTimeout.String())
}

// runTrainingPod runs a pod and returns the pod and the index of its GPU.
func (s *clusterFixture) runTrainingPod(ctx context.Context, t *testing.T, name string) (p podObject, gpu int) {
	t.Helper()
	s.apply(ctx, t, gpuPod(name, 1))
	s.waitPodReady(ctx, t, name)
	if err := s.Get(ctx, "/api/v1/namespaces/"+teamNamespace+"/pods/"+name, &p); err != nil {
		t.Fatal(err)
	}
	owners, err := s.Node.Owners(ctx, gpuResource)
	if err != nil {
		t.Fatal(err)
	}
	for i := range gpuCount {
		if owners[uuid(i)].Pod == name {
			return p, i
		}
	}
	t.Fatalf("pod %s has no GPU: owners are %v", name, owners)
	return p, 0
}

// kill ends a pod's container.
func (s *clusterFixture) kill(ctx context.Context, t *testing.T, p podObject) {
	t.Helper()
	s.shell(ctx, t, p, `for pid in $PIDS; do kill -9 "$pid" || true; done`)
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
func failingPod(ctx context.Context, t *testing.T, s *clusterFixture) {
	p, gpu := s.runTrainingPod(ctx, t, "trainer")
	await(ctx, t, "/metrics has UID and label of the pod", func(ctx context.Context) error {
		families, err := s.scrapeOne(ctx)
		if err != nil {
			return err
		}
		for _, l := range labelSets(families["nvidia_gpu_allocation_info"]) {
			if l["pod"] == "trainer" && l["pod_uid"] == p.Metadata.UID && l["label_team"] == "red" {
				return nil
			}
		}
		return fmt.Errorf("allocations are %v", labelSets(families["nvidia_gpu_allocation_info"]))
	})
	begin := time.Now()
	if err := s.machine.Event(gpu, "xid 79"); err != nil {
		t.Fatal(err)
	}
	s.kill(ctx, t, p)
	await(ctx, t, "kubectl describe pod names the GPU", s.describes("pod trainer --namespace="+teamNamespace, failure(gpu)))
	took := time.Since(begin)
	printMeasurement(t, "Xid 79 and end of the pod → kubectl describe pod names the GPU", fmt.Sprintf("%s; limit %s", formatSeconds(took), formatSeconds(describeLimit)))
	if took > describeLimit {
		t.Errorf("event in kubectl describe: got after %s, want within %s", took, describeLimit)
	}
	await(ctx, t, "kubectl describe node names the GPU", s.describes("node "+node.Name, failure(gpu)))
	await(ctx, t, "the node's condition names the GPU", s.hasCondition("True", uuid(gpu)))
	printMeasurement(t, "Xid 79 → node condition", formatSeconds(time.Since(begin)))
	await(ctx, t, "the incident has UID and exit code", s.hasTermination(p, gpu))
}

// hasCondition returns an error unless the node's condition has a status, and a text in the message.
func (s *clusterFixture) hasCondition(status, text string) func(context.Context) error {
	return func(ctx context.Context) error {
		var n struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := s.Get(ctx, "/api/v1/nodes/"+node.Name, &n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "GPUUnhealthy" && c.Status == status && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", n.Status.Conditions)
	}
}

// hasTermination returns an error unless the incident of a GPU has the pod with UID and exit code 137.
func (s *clusterFixture) hasTermination(p podObject, gpu int) func(context.Context) error {
	return func(ctx context.Context) error {
		url, err := s.podgaugeURL(ctx)
		if err != nil {
			return err
		}
		body, err := get(ctx, url+"/api/v1/incidents")
		if err != nil {
			return err
		}
		var response struct {
			Incidents []struct {
				GPU, Reason string
				Affected    []struct {
					Pod, UID string
					Ended    struct {
						ExitCode *int `json:"exit_code"`
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &response); err != nil {
			return err
		}
		for _, i := range response.Incidents {
			for _, c := range i.Affected {
				if i.GPU == uuid(gpu) && i.Reason == "xid_79" && c.UID == p.Metadata.UID && c.Ended.ExitCode != nil && *c.Ended.ExitCode == 137 {
					return nil
				}
			}
		}
		return fmt.Errorf("incidents are %s", body)
	}
}

// podgaugeURL returns the address of the only podgauge pod, for requests without the API server.
func (s *clusterFixture) podgaugeURL(ctx context.Context) (string, error) {
	own, err := s.podgaugePods(ctx)
	if err != nil || len(own) != 1 {
		return "", fmt.Errorf("podgauge pods: got %v, want 1: %w", own, err)
	}
	var pod struct{ Status struct{ PodIP string } }
	err = s.Get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", releaseNamespace, own[0].Metadata.Name), &pod)
	return "http://" + pod.Status.PodIP + ":9400", err
}

// apiServerDown kills the API server for a minute. Metrics and health continue, and faults of the outage are reported afterwards.
func apiServerDown(ctx context.Context, t *testing.T, s *clusterFixture) {
	p, gpu := s.runTrainingPod(ctx, t, "survivor")
	url, err := s.podgaugeURL(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StopAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := s.machine.Event(gpu, "xid 79"); err != nil {
		t.Fatal(err)
	}
	s.kill(ctx, t, p)
	scrapes := 0
	for time.Since(begin) < outage {
		text, err := get(ctx, url+"/metrics")
		if err != nil {
			t.Fatalf("scrape %s after the end of the API server: %v", time.Since(begin), err)
		}
		if scrapes > 2 && !unhealthyIn(text, uuid(gpu)) {
			t.Errorf("GPU %d is not unhealthy after %s", gpu, time.Since(begin))
		}
		scrapes++
		time.Sleep(time.Second)
	}
	printMeasurement(t, "API server down for a minute: successful scrapes", fmt.Sprint(scrapes))
	if err := s.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	await(ctx, t, "kubectl describe pod has the event of the outage", s.describes("pod survivor --namespace="+teamNamespace, failure(gpu)))
	await(ctx, t, "the node's condition has the fault of the outage", s.hasCondition("True", uuid(gpu)))
	await(ctx, t, "the incident has UID and exit code", s.hasTermination(p, gpu))
	printMeasurement(t, "API server up → event, condition and exit code of the outage", formatSeconds(time.Since(begin)))
	await(ctx, t, "the node lacks the GPU", s.hasAllocatable(gpuCount-2))
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(body), err
}

func unhealthyIn(metrics, uuid string) bool {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "nvidia_gpu_healthy{") && strings.Contains(line, uuid) {
			return strings.HasSuffix(strings.TrimSpace(line), " 0")
		}
	}
	return false
}

// permissionsRemoved removes podgauge's permissions for a while, and checks that events are reported afterwards.
func permissionsRemoved(ctx context.Context, t *testing.T, s *clusterFixture) {
	_, gpu := s.runTrainingPod(ctx, t, "forbidden")
	name := releaseNamespace + "-" + releaseName
	s.kubectl(ctx, t, "delete", "clusterrolebinding", name)
	if err := s.machine.Event(gpu, "xid 79"); err != nil {
		t.Fatal(err)
	}
	own, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "podgauge logs the rejection", func(ctx context.Context) error {
		log, err := s.Kubectl(ctx, "logs", "--namespace="+releaseNamespace, own[0].Metadata.Name)
		if err == nil && !strings.Contains(log, "API server rejected an event") {
			err = fmt.Errorf("log:\n%s", log)
		}
		return err
	})
	await(ctx, t, "the node lacks the GPU", s.hasAllocatable(gpuCount-3))
	s.kubectl(ctx, t, "create", "clusterrolebinding", name, "--clusterrole="+name, "--serviceaccount="+releaseNamespace+":"+releaseName)
	await(ctx, t, "the event is reported with restored permissions", s.describes("pod forbidden --namespace="+teamNamespace, failure(gpu)))
	await(ctx, t, "the condition is reported with restored permissions", s.hasCondition("True", uuid(gpu)))
}

func (s *clusterFixture) kubernetesValues() string { return s.Node.Path("kubernetes.yaml") }

// conditionDisabled disables the node condition and removes the remaining condition as docs/how-to/kubernetes-objects.md describes.
func conditionDisabled(ctx context.Context, t *testing.T, s *clusterFixture) {
	s.helm(ctx, t, "upgrade", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+s.values, "--values="+s.kubernetesValues(),
		"--set=kubernetes.nodeCondition=false")
	await(ctx, t, "the DaemonSet is ready", s.daemonSet)
	if err := s.hasCondition("True", "GPU")(ctx); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(repoRoot + "/docs/how-to/kubernetes-objects.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(string(page), "<!-- remove-condition -->\n```sh\n")
	command, _, found := strings.Cut(command, "```\n<!-- /remove-condition -->")
	if !found {
		t.Fatal("docs/how-to/kubernetes-objects.md has no command")
	}
	kubectl, err := programs.ControlPlane.Binary("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.CommandContext(ctx, "sh", "-euc", command)
	shell.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "HOME="+s.Node.Path("home"), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	var n struct {
		Status struct{ Conditions []struct{ Type string } }
	}
	if err := s.Get(ctx, "/api/v1/nodes/"+node.Name, &n); err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprint(n.Status.Conditions); strings.Contains(all, "GPUUnhealthy") || !strings.Contains(all, "Ready") {
		t.Errorf("conditions are %s", all)
	}
}
