package peers

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/require"
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
