package peers

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// process is a program under measurement.
type process struct {
	*exec.Cmd
	callsFile string // of the NVML stand-in's call counts; empty: calls are not counted
	log       bytes.Buffer
}

// startProcess runs a program with the NVML stand-in until the test ends.
func startProcess(t *testing.T, n *machine, command ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(command[0], command[1:]...)}
	p.Env = append(os.Environ(), "LD_LIBRARY_PATH="+n.library, "NVML_STANDIN="+n.scenarioFile)
	if n.gpus <= nvmltest.MaxGPUs {
		p.callsFile = filepath.Join(n.dir, "calls")
		p.Env = append(p.Env, "NVML_STANDIN_CALLS="+p.callsFile)
	}
	p.Stdout, p.Stderr = &p.log, &p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, p.Start())
	t.Cleanup(p.kill)
	return p
}

// kill ends the process. ProcessState then has the total CPU time.
func (p *process) kill() {
	if p.ProcessState == nil {
		p.Process.Kill()
		p.Wait()
	}
}

func (p *process) totalCPU() time.Duration {
	return p.ProcessState.UserTime() + p.ProcessState.SystemTime()
}

// usage is the resource usage of a process since its start.
type usage struct {
	cpu             time.Duration
	contextSwitches int
	nvmlCalls       int
}

func (u usage) since(earlier usage) usage {
	return usage{u.cpu - earlier.cpu, u.contextSwitches - earlier.contextSwitches, u.nvmlCalls - earlier.nvmlCalls}
}

func (p *process) usage(t *testing.T) (u usage) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.Process.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%s exited: %v\n%s", p.Path, err, p.log.String())
	}
	for _, task := range tasks {
		schedstat, _ := os.ReadFile(task + "/schedstat") // an ended task counts 0
		if fields := strings.Fields(string(schedstat)); len(fields) > 0 {
			u.cpu += time.Duration(parseInt(t, fields[0]))
		}
		status, _ := os.ReadFile(task + "/status")
		u.contextSwitches += statusField(t, string(status), "voluntary_ctxt_switches") + statusField(t, string(status), "nonvoluntary_ctxt_switches")
	}
	if p.callsFile == "" {
		return u
	}
	calls, err := nvmltest.ReadCalls(p.callsFile)
	require.NoError(t, err)
	for gpu := range nvmltest.NoGPU + 1 {
		u.nvmlCalls += int(calls.GPUTotal(gpu))
	}
	return u
}

// memory returns the resident and the anonymous memory in bytes.
func (p *process) memory(t *testing.T) (resident, anonymous int) {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.Process.Pid))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.log.String())
	}
	return statusField(t, string(rollup), "Rss") << 10, statusField(t, string(rollup), "Anonymous") << 10
}

// statusField returns a field of a file in /proc, 0 if the field is missing.
func statusField(t *testing.T, text, name string) int {
	t.Helper()
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return parseInt(t, strings.Fields(value)[0])
		}
	}
	return 0
}

func parseInt(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// scrape returns the metrics of a program, requested with compression as Prometheus does.
func scrape(url string) (text string, err error) {
	request, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, response.Status)
	}
	body, err := gzip.NewReader(response.Body)
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(body)
	return string(content), err
}

const (
	resource    = "nvidia.com/gpu"
	gpuCount    = 8
	waitTimeout = time.Minute
)

// machine is a simulated kubelet and the NVML stand-in's GPUs.
type machine struct {
	dir, library string
	gpus         int
	scenarioFile string
	scenario     *nvmltest.Scenario
	kubelet      *kubelet.Kubelet
}

func newMachine(t *testing.T, library string, gpus int) *machine {
	t.Helper()
	dir := program.ShortDir(t)
	n := &machine{dir: dir, library: library, gpus: gpus, scenarioFile: filepath.Join(dir, "scenario"), kubelet: background.Kubelet(t, kubelet.Options{Dir: dir})}
	n.scenario = nvmltest.NewScenario(n.scenarioFile)
	require.NoError(t, n.scenario.Set(fmt.Sprintf("gpus %d", gpus), "gpu * utilization 0~100/20s", "gpu * power 70000~700000/30s"))
	return n
}

func (n *machine) wait(t *testing.T, cond func(kubelet.KubeletState) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, n.kubelet.Wait(ctx, cond))
}

// waitForHealthy waits until the kubelet has a number of healthy GPUs.
func (n *machine) waitForHealthy(t *testing.T, count int) {
	t.Helper()
	n.wait(t, func(s kubelet.KubeletState) bool {
		return s.Resources[resource].Registered && s.Resources[resource].Allocatable == count
	})
}

// runPods runs pods with one GPU each, and pods without a GPU.
func (n *machine) runPods(t *testing.T, withGPU, without int) {
	t.Helper()
	for i := range withGPU + without {
		container := kubelet.ContainerSpec{Name: "main"}
		if i < withGPU {
			container.Limits = map[string]int{resource: 1}
		}
		spec := kubelet.PodSpec{Namespace: "research", Name: fmt.Sprintf("pod-%d", i), Containers: []kubelet.ContainerSpec{container, {Name: "sidecar"}}}
		require.NoError(t, n.kubelet.RunPod(t.Context(), spec))
	}
}

func (n *machine) pluginSocket(t *testing.T) string {
	t.Helper()
	sockets := n.kubelet.Resource(resource).Sockets
	if len(sockets) != 1 {
		t.Fatalf("sockets of the device plugin: got %d, want 1", len(sockets))
	}
	return filepath.Join(n.dir, "device-plugins", sockets[0])
}

// nvmlLibrary builds the NVML stand-in and returns its folder.
func nvmlLibrary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	_, err := nvmltest.Build(dir)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll("/var/lib/kubelet", 0o755)) // mount point for the peer
	return dir
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}

// TestReadmeFigures checks that make bench-peers wrote each figure of README.md's table to docs/contributing/benchmarks.md.
func TestReadmeFigures(t *testing.T) {
	table := regexp.MustCompile(`(?s)<!-- peers -->.*<!-- /peers -->`).FindString(testfile.Read(t, page))
	table = regexp.MustCompile(` \([\d.]+\) MB`).ReplaceAllString(table, " MB") // without the anonymous part
	rows := regexp.MustCompile("(?m)^\\|.*`make bench-peers` \\|$").FindAllString(testfile.Read(t, "../../../README.md"), -1)
	figure := regexp.MustCompile(`\b[\d.]+ (MB|ms|NVML calls)`)
	checked := 0
	for _, row := range rows {
		for _, want := range figure.FindAllString(row, -1) {
			checked++
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(want)).MatchString(table) {
				t.Errorf("%s of README.md is not in %s", want, page)
			}
		}
	}
	if checked < 5 {
		t.Errorf("figures in README.md: got %d, want at least 5", checked)
	}
}
