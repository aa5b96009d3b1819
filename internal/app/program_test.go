package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// program, in the environment, has this test binary be podgauge, with its arguments.
const program = "PODGAUGE_TEST_PROGRAM"

// startProgram runs podgauge on the stand-in for NVML, which only a process that begins
// with its folder in the environment finds. It returns the address of the metrics, and a
// func that reads which functions were called how often.
func startProgram(t *testing.T, machine []string, args ...string) (url string, calls func() nvmltest.Calls) {
	t.Helper()
	dir := shortDir(t)
	if _, err := nvmltest.Build(dir); err != nil {
		t.Fatal(err)
	}
	if err := nvmltest.NewScenario(filepath.Join(dir, "scenario")).Set(machine...); err != nil {
		t.Fatal(err)
	}
	podgauge := exec.Command(os.Args[0], append(args, "--web.listen-address=127.0.0.1:0", "--kubelet-dir="+dir)...)
	podgauge.Env = append(os.Environ(), program+"=1", "LD_LIBRARY_PATH="+dir,
		nvmltest.EnvScenario+"="+filepath.Join(dir, "scenario"), nvmltest.EnvCalls+"="+filepath.Join(dir, "calls"))
	podgauge.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said, err := podgauge.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := podgauge.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	t.Cleanup(func() {
		if err := podgauge.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		<-read
		if err := podgauge.Wait(); err != nil {
			t.Errorf("podgauge: %v", err)
		}
	})
	lines := bufio.NewScanner(said)
	for url == "" && lines.Scan() {
		if listens := regexp.MustCompile(`listen=(\S+)`).FindStringSubmatch(lines.Text()); listens != nil {
			url = "http://" + listens[1] + "/metrics"
		}
	}
	go func() {
		_, err := io.Copy(io.Discard, said)
		read <- err
	}()
	if url == "" {
		t.Fatal("podgauge does not say where it listens")
	}
	return url, func() nvmltest.Calls {
		t.Helper()
		counted, err := nvmltest.ReadCalls(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		return counted
	}
}

func beProgram() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// TestCallsOfTheProgram: with everything on, on GPUs of all kinds, the one function that
// holds its caller up for 20 ms is never called.
func TestCallsOfTheProgram(t *testing.T) {
	models := []string{"h100", "a100", "b200", "gb200", "t4", "h100"}
	machine := []string{fmt.Sprint("gpus ", len(models))}
	for i, model := range models {
		machine = append(machine, fmt.Sprintf("gpu %d model %s", i, model), fmt.Sprintf("gpu %d process 17 1000", i))
	}
	machine = append(machine, "gpu 5 mig_mode 1", "gpu 5 slice 0 1g.10gb gi 7 ci 0", "gpu 5 slice 1 3g.40gb gi 2 ci 0")
	url, calls := startProgram(t, machine, "--device-plugin=false", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-labels=allocation")
	text := ""
	until(t, "all GPUs were read twice, and sampled", func() bool {
		text = page(t, url)
		return strings.Contains(text, `nvidia_gpu_sm_active_ratio{container="",gpu="5",mig_uuid="MIG-`) && calls().Of("nvmlDeviceGetMemoryInfo_v2", 4) > 1
	})
	lint(t, "the stand-in", text)
	counted := calls()
	for gpu := range models {
		if n := counted.Of("nvmlDeviceGetPcieThroughput", gpu); n > 0 {
			t.Errorf("nvmlDeviceGetPcieThroughput is called %d times on GPU %d", n, gpu)
		}
		if counted.PerGPU(gpu) == 0 {
			t.Errorf("nothing is asked of GPU %d", gpu)
		}
	}
}

// page is what a scrape answers.
func page(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
