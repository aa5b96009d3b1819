package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// examinedNode is what doctor says of a node on which two things are wrong: a container that
// was given two GPUs of its node, and NVIDIA's plugin beside it.
func examinedNode(t *testing.T) []doctor.Finding {
	t.Helper()
	dir, now := shortDir(t), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	runsKubelet(t, kubelet.Options{Dir: dir, EmptyFor: -1, Since: now.Add(-26 * time.Hour)})
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
	findings := doctor.Examine(t.Context(), doctor.Options{
		Config: "/etc/podgauge/config.yaml", Driver: twoGPUs{}, Files: allOpen{}, AnswersNodes: true, DevRoot: "/", MountedDriverRoot: "/driver-root",
		Offered:    offeredBy(config.Settings{}),
		KubeletDir: dir, DevicePluginDir: plugins, Offers: true, PodLogsDir: dir, KernelLog: "/dev/kmsg",
		LookupEnv: env(map[string]string{"NVIDIA_VISIBLE_DEVICES": "0,1"}), Proc: filepath.Join(dir, "proc"), Now: func() time.Time { return now },
	})
	for i, f := range findings {
		findings[i].Found = strings.ReplaceAll(f.Found, dir, "/var/lib/kubelet")
		findings[i].Mend = strings.ReplaceAll(f.Mend, dir, "/var/lib/kubelet")
		if f.Check == "registration" { // how old that socket is, is the test's
			findings[i].Found = "the kubelet listens, for 26 hours"
		}
	}
	return findings
}

// runsKubelet starts one, and returns what ends it.
func runsKubelet(t *testing.T, o kubelet.Options) (stop func()) {
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
	if err := k.Wait(t.Context(), func(s kubelet.State) bool { return s.Serving && s.PodsRead }); err != nil {
		t.Fatal(err)
	}
	return stop
}

// twoGPUs is a driver that has them, and allOpen the files of a node that has all.
type (
	twoGPUs struct{}
	allOpen struct{}
)

func (twoGPUs) Devices(context.Context) ([]device.Device, error) {
	return []device.Device{{ID: "GPU-a", GPU: "GPU-a"}, {ID: "GPU-b", GPU: "GPU-b", Minor: 1}}, nil
}

func (twoGPUs) Library() doctor.Library {
	return doctor.Library{
		Path: "/usr/lib64/libnvidia-ml.so.550.54.15", Version: "550.54.15",
		Lacks: []string{"nvmlDeviceGetRepairStatus"}, Costs: []string{"nvidia_gpu_repair_pending"},
	}
}

func (allOpen) Open(string, int) error      { return nil }
func (allOpen) Access(string, uint32) error { return nil }
func (allOpen) Free(string) (uint64, error) { return 1 << 40, nil }

// TestDoctorTables: what is shown of a node, and of one whose names are hostile.
func TestDoctorTables(t *testing.T) {
	hostile := []doctor.Finding{{Check: "other plugins", Verdict: doctor.Failure, Found: "nvidia-\x1b[2J\u202egpu\x9b.sock", Why: "a\x07\nb", Mend: "rm \x1b]0;x\x07"}}
	for name, findings := range map[string][]doctor.Finding{"doctor": examinedNode(t), "doctor_hostile": hostile} {
		d := diagnosed("node-a", findings)
		d.Version = "v1.2.3"
		table, err := d.text("table", false, nothing)
		if err != nil {
			t.Fatal(err)
		}
		shownAs(t, filepath.Join("testdata", name+".txt"), table)
		body, err := d.text("json", true, nothing)
		if err != nil || !json.Valid([]byte(body)) {
			t.Errorf("%v, %s", err, body)
		}
		shownAs(t, filepath.Join("testdata", name+".json"), body)
		for _, text := range []string{table, body} {
			if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("a terminal is told what to do: %q", text)
			}
		}
	}
	d := diagnosed("node-a", examinedNode(t))
	if text, _ := d.text("table", true, nothing); !strings.Contains(text, string(red)+"failure"+reset) || !strings.Contains(text, string(yellow)+"warning"+reset) {
		t.Errorf("there are no colours: %q", text)
	}
	if text, _ := d.text("table", true, env(map[string]string{"NO_COLOR": "1"})); strings.Contains(text, "\x1b") {
		t.Errorf("there are colours: %q", text)
	}
}

// TestDoctorOfThePage: docs/operations.md shows what is shown.
func TestDoctorOfThePage(t *testing.T) {
	const file = "../../docs/operations.md"
	d := diagnosed("node-a", examinedNode(t))
	hasTables(t, file, map[string]string{"doctor": fenced(d.table(false))})
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Checks {
		if !strings.Contains(string(page), "\n| "+f.Check+" | ") {
			t.Errorf("docs/operations.md does not have the check %s", f.Check)
		}
	}
}

// TestDoctor runs the command on a machine with a kubelet and without, and with a command
// line or a config that is wrong.
func TestDoctor(t *testing.T) {
	dir := shortDir(t)
	stop := runsKubelet(t, kubelet.Options{Dir: dir, EmptyFor: -1})
	// The folders of the machine that the test runs on, which may be a container, are left out.
	args := []string{"doctor", "--kubelet-dir", dir, "--state-dir", t.TempDir(), "--kernel-log=", "--pod-logs-dir", dir}
	diagnose := func(want int, more ...string) (d diagnosis) {
		t.Helper()
		stdout, stderr, status := asks(t, append(append(slices.Clip(args), "-o=json"), more...)...)
		if err := json.Unmarshal([]byte(stdout), &d); err != nil || status != want || stderr != "" {
			t.Fatalf("status %d, want %d: %v\n%s%s", status, want, err, stdout, stderr)
		}
		return d
	}
	verdict := func(d diagnosis, check string) doctor.Verdict {
		for _, f := range d.Checks {
			if f.Check == check {
				return f.Verdict
			}
		}
		return ""
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		if d := diagnose(exitOK); d.Failures != 0 || verdict(d, "pod resources") != doctor.OK || verdict(d, "driver") != doctor.Skipped {
			t.Errorf("%+v", d)
		}
	}
	wrong := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(wrong, []byte("version: v7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := diagnose(exitError, "--config-file", wrong); verdict(d, "config") != doctor.Failure || verdict(d, "pod resources") != doctor.OK {
		t.Errorf("%+v", d)
	}
	stop()
	if d := diagnose(exitError); verdict(d, "registration") != doctor.Failure || verdict(d, "pod resources") != doctor.Failure {
		t.Errorf("%+v", d)
	}
	for _, more := range [][]string{{"-o", "yaml"}, {"x"}, {"--mig-strategy=x"}, {"--config-file", wrong, "--mig-strategy=x"}, {"--log.level=x"}} {
		if stdout, stderr, status := asks(t, append(slices.Clip(args), more...)...); status != exitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: status %d, %q, %q", more, status, stdout, stderr)
		}
	}
}
