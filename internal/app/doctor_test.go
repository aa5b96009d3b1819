package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/text"
)

// brokenNodeFindings returns doctor's findings on a node with two problems: a library without a required function, and NVIDIA's plugin
// beside podgauge.
func brokenNodeFindings(t *testing.T) []doctor.Finding {
	t.Helper()
	dir, now := shortDir(t), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	runKubelet(t, kubelet.Options{Dir: dir, ReadPodsAtOnce: true, RunningSince: now.Add(-26 * time.Hour)})
	plugins := filepath.Join(dir, "device-plugins")
	for _, name := range []string{"nvidia-gpu.sock", "amd.com_gpu"} {
		l, err := net.Listen("unix", filepath.Join(plugins, name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if err := os.MkdirAll(filepath.Join(dir, "proc/self"), 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := fmt.Sprintf("1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /dev/termination-log rw - ext4 /dev/sda rw\n3 1 0:2 / %s rw - ext4 /dev/sda rw\n", dir)
	if err := os.WriteFile(filepath.Join(dir, "proc/self/mountinfo"), []byte(mounts), 0o600); err != nil {
		t.Fatal(err)
	}
	ready := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }))
	defer ready.Close()
	findings := doctor.Run(t.Context(), doctor.Options{
		Config: "/etc/podgauge/config.yaml", Driver: twoGPUDriver{}, Files: permissiveFiles{}, InjectsDeviceNodes: true, DevRoot: "/",
		KubeletDir: dir, DevicePluginDir: plugins, DevicePlugin: true, PodLogsDir: dir, KernelLog: "/dev/kmsg",
		LookupEnv: emptyEnv, Proc: filepath.Join(dir, "proc"), ReadyURL: ready.URL,
	})
	for i, f := range findings {
		findings[i].Message = strings.ReplaceAll(f.Message, dir, "/var/lib/kubelet")
		findings[i].Fix = strings.ReplaceAll(f.Fix, dir, "/var/lib/kubelet")
	}
	return findings
}

// runKubelet starts a kubelet and waits until it serves.
func runKubelet(t *testing.T, o kubelet.Options) (stop func()) {
	t.Helper()
	k := kubelet.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	if err := k.Wait(t.Context(), func(s kubelet.KubeletState) bool { return s.Serving && s.PodsRead }); err != nil {
		t.Fatal(err)
	}
	return stop
}

// twoGPUDriver is a driver with two GPUs. permissiveFiles grants access to all files.
type (
	twoGPUDriver    struct{}
	permissiveFiles struct{}
)

func (twoGPUDriver) Devices(context.Context) ([]device.Device, error) {
	return []device.Device{{ID: "GPU-a", GPU: "GPU-a"}, {ID: "GPU-b", GPU: "GPU-b", Minor: 1}}, nil
}

func (twoGPUDriver) Library() doctor.Library {
	return doctor.Library{
		Path: "/usr/lib64/libnvidia-ml.so.550.54.15", Version: "550.54.15",
		MissingFunctions: []string{"nvmlDeviceGetRepairStatus"}, MissingFamilies: []string{"nvidia_gpu_repair_pending"},
	}
}

func (permissiveFiles) Open(string, int) error     { return nil }
func (permissiveFiles) CheckWritable(string) error { return nil }

// doctorPage formats a report like the command.
func doctorPage(t *testing.T, r *doctor.Report, format string) string {
	t.Helper()
	page, err := renderReport(r, cli.Output{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return text.PrintableLines(page)
}

// TestDoctorTables checks the output for a broken node, and for hostile names.
func TestDoctorTables(t *testing.T) {
	hostile := []doctor.Finding{{Check: "other plugins", Status: doctor.StatusFailure, Message: "nvidia-\x1b[2J\u202egpu\x9b.sock", Impact: "a\x07\nb", Fix: "rm \x1b]0;x\x07"}}
	for name, findings := range map[string][]doctor.Finding{"doctor": brokenNodeFindings(t), "doctor_hostile": hostile} {
		d := doctor.NewReport("node-a", "v1.2.3", findings)
		table, body := doctorPage(t, &d, "table"), doctorPage(t, &d, "json")
		checkGolden(t, filepath.Join("testdata", name+".txt"), table)
		if !json.Valid([]byte(body)) {
			t.Errorf("output is not JSON: %s", body)
		}
		checkGolden(t, filepath.Join("testdata", name+".json"), body)
		for _, page := range []string{table, body} {
			if strings.ContainsFunc(page, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("control characters in the output: %q", page)
			}
		}
	}
}

// TestDoctorInDocs checks that docs/how-to/troubleshoot.md has the output of doctor.
func TestDoctorInDocs(t *testing.T) {
	d := doctor.NewReport("node-a", version, brokenNodeFindings(t))
	checkTables(t, "../../docs/how-to/troubleshoot.md", map[string]string{"doctor": codeBlock(doctorPage(t, &d, "table"))})
}

// TestDoctor runs the command with and without a kubelet, and with an invalid command line or config.
func TestDoctor(t *testing.T) {
	dir := shortDir(t)
	stop := runKubelet(t, kubelet.Options{Dir: dir, ReadPodsAtOnce: true})
	// The flags exclude folders of the test's machine, which may be a container.
	args := []string{"doctor", "--kubelet-dir", dir, "--state-dir", t.TempDir(), "--kernel-log=", "--pod-logs-dir", dir, "--web.listen-address=127.0.0.1:1"}
	diagnose := func(want int, more ...string) (d doctor.Report) {
		t.Helper()
		stdout, stderr, status := runCLI(t, append(append(slices.Clip(args), "-o=json"), more...)...)
		if err := json.Unmarshal([]byte(stdout), &d); err != nil || status != want || stderr != "" {
			t.Fatalf("got status %d, want %d: %v\n%s%s", status, want, err, stdout, stderr)
		}
		return d
	}
	statusOf := func(d doctor.Report, check string) doctor.CheckStatus {
		for _, f := range d.Checks {
			if f.Check == check {
				return f.Status
			}
		}
		return ""
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		if d := diagnose(cli.ExitOK); d.Failures != 0 || statusOf(d, "pod resources") != doctor.StatusOK || statusOf(d, "driver") != doctor.StatusSkipped {
			t.Errorf("report: got %+v", d)
		}
	}
	wrong := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(wrong, []byte("version: v7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := diagnose(cli.ExitError, "--config-file", wrong); statusOf(d, "config") != doctor.StatusFailure || statusOf(d, "pod resources") != doctor.StatusOK {
		t.Errorf("report with an invalid config: got %+v", d)
	}
	if stdout, _, _ := runCLI(t, append(slices.Clip(args), "-o=yaml")...); !strings.Contains(stdout, "\n  - check: pod resources\n    status: ok\n") {
		t.Errorf("-o yaml: got %s", stdout)
	}
	if stdout, _, _ := runCLI(t, append(slices.Clip(args), "--no-headers")...); !strings.HasPrefix(stdout, "ready ") {
		t.Errorf("--no-headers: got %s", stdout)
	}
	stop()
	if d := diagnose(cli.ExitError); statusOf(d, "registration") != doctor.StatusFailure || statusOf(d, "pod resources") != doctor.StatusFailure {
		t.Errorf("report without a kubelet: got %+v", d)
	}
	for _, more := range [][]string{{"-o", "xml"}, {"x"}, {"--mig-strategy=x"}, {"--config-file", wrong, "--mig-strategy=x"}, {"--log.level=x"}} {
		if stdout, stderr, status := runCLI(t, append(slices.Clip(args), more...)...); status != cli.ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: got status %d, %q, %q", more, status, stdout, stderr)
		}
	}
}
