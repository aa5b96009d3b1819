package app_test

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
	"testing"
	"time"
	"unicode"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// brokenNodeFindings returns doctor's findings on a node with two problems: a library without a required function, and NVIDIA's plugin
// beside podgauge.
func brokenNodeFindings(t *testing.T) []doctor.Finding {
	t.Helper()
	dir, now := program.ShortDir(t), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	runKubelet(t, kubelet.Options{Dir: dir, ReadPodsAtOnce: true, RunningSince: now.Add(-26 * time.Hour)})
	plugins := filepath.Join(dir, "device-plugins")
	for _, name := range []string{"nvidia-gpu.sock", "amd.com_gpu"} {
		l, err := net.Listen("unix", filepath.Join(plugins, name))
		require.NoError(t, err)
		defer l.Close()
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/self"), 0o755))
	mounts := fmt.Sprintf("1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /dev/termination-log rw - ext4 /dev/sda rw\n3 1 0:2 / %s rw - ext4 /dev/sda rw\n", dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "proc/self/mountinfo"), []byte(mounts), 0o600))
	ready := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }))
	defer ready.Close()
	findings := doctor.Run(t.Context(), doctor.Options{
		Config: "/etc/podgauge/config.yaml", Driver: twoGPUDriver{}, Files: permissiveFiles{}, InjectsDeviceNodes: true, DevRoot: "/",
		KubeletDir: dir, DevicePluginDir: plugins, DevicePlugin: true, PodLogsDir: dir, KernelLog: "/dev/kmsg",
		LookupEnv: fakeEnv(nil), Proc: filepath.Join(dir, "proc"), ReadyURL: ready.URL,
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
	stop = background.Run(t, k.Run)
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Serving && s.PodsRead })
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

func (twoGPUDriver) Library() device.Library {
	return device.Library{
		Path: "/usr/lib64/libnvidia-ml.so.550.54.15", Version: "550.54.15",
		MissingFunctions: []string{"nvmlDeviceGetRepairStatus"}, MissingFamilies: []string{"nvidia_gpu_repair_pending"},
	}
}

func (permissiveFiles) Open(string, int) error     { return nil }
func (permissiveFiles) CheckWritable(string) error { return nil }

// TestDoctorTables checks the output for a broken node, also in docs/how-to/troubleshoot.md, and for hostile names.
func TestDoctorTables(t *testing.T) {
	broken := brokenNodeFindings(t)
	hostile := []doctor.Finding{{Check: "other plugins", Status: doctor.StatusFailure, Message: "nvidia-\x1b[2J\u202egpu\x9b.sock", Impact: "a\x07\nb", Fix: "rm \x1b]0;x\x07"}}
	page := func(version, format string, findings []doctor.Finding) string {
		t.Helper()
		r := doctor.NewReport("node-a", version, findings)
		page, err := r.Render(cli.Output{Format: format})
		require.NoError(t, err)
		return text.PrintableLines(page)
	}
	for name, findings := range map[string][]doctor.Finding{"doctor": broken, "doctor_hostile": hostile} {
		table, body := page("v1.2.3", "table", findings), page("v1.2.3", "json", findings)
		checkGolden(t, name+".txt", table)
		checkGolden(t, name+".json", body)
		if !json.Valid([]byte(body)) {
			t.Errorf("output is not JSON: %s", body)
		}
		if strings.ContainsFunc(table+body, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("control characters in the output: %q", table+body)
		}
	}
	docs.CheckTables(t, *update, "../../docs/how-to/troubleshoot.md", map[string]string{"doctor": codeBlock(page("dev", "table", broken))})
}

// TestDoctor runs the command with and without a kubelet, and with an invalid command line or config.
func TestDoctor(t *testing.T) {
	dir := program.ShortDir(t)
	stop := runKubelet(t, kubelet.Options{Dir: dir, ReadPodsAtOnce: true})
	// The flags exclude folders of the test's machine, which may be a container.
	args := []string{"doctor", "--kubelet-dir", dir, "--state-dir", t.TempDir(), "--kernel-log=", "--pod-logs-dir", dir, "--web.listen-address=127.0.0.1:1"}
	wrong := writeConfig(t, "version: v7\n")
	check := func(wantStatus int, want map[string]doctor.CheckStatus, more ...string) {
		t.Helper()
		stdout, stderr, status := runCLI(t, append(append(slices.Clip(args), "-o=json"), more...)...)
		var report doctor.Report
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || stderr != "" || status != wantStatus {
			t.Errorf("%v: got status %d, want %d: %v\n%s%s", more, status, wantStatus, err, stdout, stderr)
		}
		for _, f := range report.Checks {
			if status, has := want[f.Check]; has && f.Status != status {
				t.Errorf("%v: got %+v, want %s", more, f, status)
			}
		}
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		check(cli.ExitOK, map[string]doctor.CheckStatus{"pod resources": doctor.StatusOK, "driver": doctor.StatusSkipped})
	}
	check(cli.ExitError, map[string]doctor.CheckStatus{"config": doctor.StatusFailure, "pod resources": doctor.StatusOK}, "--config-file", wrong)
	if stdout, _, _ := runCLI(t, append(slices.Clip(args), "-o=yaml")...); !strings.Contains(stdout, "\n  - check: pod resources\n    status: ok\n") {
		t.Errorf("-o yaml: got %s", stdout)
	}
	if stdout, _, _ := runCLI(t, append(slices.Clip(args), "--no-headers")...); !strings.HasPrefix(stdout, "ready ") {
		t.Errorf("--no-headers: got %s", stdout)
	}
	stop()
	check(cli.ExitError, map[string]doctor.CheckStatus{"registration": doctor.StatusFailure, "pod resources": doctor.StatusFailure})
	for _, more := range []string{"-o=xml", "x", "--mig-strategy=x", "--config-file=" + wrong + " --mig-strategy=x", "--log.level=x"} {
		stdout, stderr, status := runCLI(t, append(slices.Clip(args), strings.Fields(more)...)...)
		if status != cli.ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: got status %d, %q, %q", more, status, stdout, stderr)
		}
	}
}
