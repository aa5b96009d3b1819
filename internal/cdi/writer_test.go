package cdi_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

const (
	checkInterval   = time.Second
	rebuildInterval = 30 * time.Second
	retryInterval   = 10 * time.Second
)

// runWriter runs a test with a Writer in a synctest bubble.
func runWriter(t *testing.T, gpus int, change func(*cdi.Options), body func(*writerFixture)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { body(newFixture(t, gpus, change)) })
}

// wantDevices checks the devices in the spec of GPUs.
func (s *writerFixture) wantDevices(devices ...string) {
	s.Helper()
	want := make([]string, len(devices))
	for i, d := range devices {
		want[i] = "k8s.device-plugin.nvidia.com/gpu=" + d
	}
	if got := s.cdiCache().ListDevices(); !slices.Equal(got, want) || s.hasSpec("gpu") != (len(want) > 0) {
		s.Fatalf("devices: got %q, want %q, state %+v", got, want, s.state)
	}
}

func TestSpecsFollowTheInventory(t *testing.T) {
	runWriter(t, 2, nil, func(s *writerFixture) {
		s.setDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
		s.setDevices(makeGPUs(2))
		s.wantDevices("GPU-0", "GPU-1")
		wantSet(t, "files", s.specNames(), "k8s.device-plugin.nvidia.com-gpu.json")
		if info, err := os.Stat(s.specPathOf("gpu")); err != nil || info.Mode() != 0o644 {
			t.Errorf("spec file: got %v, %v, want mode 0644", info, err)
		}
		if !s.state.Attempted() || !s.hasSpec("gpu") || s.hasSpec("gds") {
			t.Errorf("specs: got %q, want gpu", s.state.Classes)
		}
		lost := healthyStatuses(makeGPUs(2))
		lost[0].Healthy, lost[0].Reason, lost[0].Gone = false, "gone", true
		s.Update(lost)
		s.wantDevices("GPU-1")
		s.setDevices(nil)
		s.wantDevices()
		if files := s.specNames(); len(files) > 0 {
			t.Errorf("files without devices: got %q, want none", files)
		}
		s.setDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
		if n := s.countLogLines("WARN"); n > 0 {
			t.Errorf("got %d warnings, want 0:\n%s", n, s.log.String())
		}
	})
}

// TestUnchangedFile checks that a valid file is not rewritten: runtimes read
// all specs after a change.
func TestUnchangedFile(t *testing.T) {
	runWriter(t, 2, nil, func(s *writerFixture) {
		s.setDevices(makeGPUs(2))
		before, err := os.Stat(s.specPathOf("gpu"))
		s.must(err)
		s.statuses[1].Healthy, s.statuses[1].Reason = false, "xid_79"
		s.advance(2 * time.Minute)
		after, err := os.Stat(s.specPathOf("gpu"))
		s.must(err)
		if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Error("the file was rewritten")
		}
		if n := s.countLogLines(""); n != 1 {
			t.Errorf("got %d log lines, want 1:\n%s", n, s.log.String())
		}
	})
}

func TestFileRestored(t *testing.T) {
	for name, change := range map[string]func(*writerFixture){
		"removed":        func(s *writerFixture) { s.must(os.Remove(s.specPathOf("gpu"))) },
		"folder removed": func(s *writerFixture) { s.must(os.RemoveAll(s.specDir)) },
		"altered":        func(s *writerFixture) { s.must(os.WriteFile(s.specPathOf("gpu"), []byte("{}"), 0o644)) },
		"replaced":       func(s *writerFixture) { s.replaceFile("{}") },
		"folder in its place": func(s *writerFixture) {
			s.must(os.Remove(s.specPathOf("gpu")))
			s.must(os.Mkdir(s.specPathOf("gpu"), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			runWriter(t, 1, nil, func(s *writerFixture) {
				s.setDevices(makeGPUs(1))
				valid := s.readSpec("gpu")
				change(s)
				s.advance(checkInterval)
				if name == "folder in its place" { // rename fails
					if s.hasSpec("gpu") || s.state.Err == nil || !s.state.Attempted() {
						t.Errorf("state: got %+v, want an attempt with an error and no spec", s.state)
					}
					s.must(os.Remove(s.specPathOf("gpu")))
					s.advance(retryInterval)
				}
				if got := s.readSpec("gpu"); got != valid {
					t.Errorf("spec: got %s, want %s", got, valid)
				}
				s.wantDevices("GPU-0")
			})
		})
	}
}

// replaceFile replaces the spec as another program does.
func (s *writerFixture) replaceFile(content string) {
	s.Helper()
	other := filepath.Join(s.TempDir(), "other")
	s.must(os.WriteFile(other, []byte(content), 0o644))
	s.must(os.Rename(other, s.specPathOf("gpu")))
}

// TestNextWriter checks the handling of files from an earlier process.
func TestNextWriter(t *testing.T) {
	leave := func(s *writerFixture, names ...string) {
		s.must(os.MkdirAll(s.specDir, 0o755))
		for _, name := range names {
			path := filepath.Join(s.specDir, name)
			s.must(os.WriteFile(path, []byte("{}"), 0o644))
		}
	}
	const (
		gpu   = "k8s.device-plugin.nvidia.com-gpu.json"
		gds   = "k8s.device-plugin.nvidia.com-gds.json"
		other = "nvidia.yaml.off"
	)
	t.Run("device gone, class disabled, temporary file", func(t *testing.T) {
		runWriter(t, 2, nil, func(s *writerFixture) {
			leave(s, gpu, gds, other, "spec.1.tmp")
			s.must(os.Chtimes(filepath.Join(s.specDir, "spec.1.tmp"), time.Unix(0, 0), time.Unix(0, 0)))
			s.setDevices(makeGPUs(1))
			s.wantDevices("GPU-0")
			wantSet(t, "files", s.specNames(), gpu, other)
		})
	})
	t.Run("no devices", func(t *testing.T) {
		runWriter(t, 0, nil, func(s *writerFixture) {
			leave(s, gpu)
			s.setDevices(makeGPUs(0))
			wantSet(t, "files", s.specNames())
		})
	})
	t.Run("driver files missing", func(t *testing.T) {
		runWriter(t, 0, nil, func(s *writerFixture) {
			s.must(os.RemoveAll(filepath.Join(s.driverRoot, "usr")))
			leave(s, gpu, gds)
			s.setDevices(makeGPUs(1))
			wantSet(t, "files", s.specNames(), gpu)
			if s.hasSpec("gpu") {
				t.Error("HasSpec: got true for an unchecked file, want false")
			}
		})
	})
	t.Run("CDI disabled", func(t *testing.T) {
		s := newFixture(t, 0, nil)
		leave(s, gpu, gds, other)
		s.must(cdi.RemoveSpecs(s.specDir))
		wantSet(t, "files", s.specNames(), other)
		s.must(cdi.RemoveSpecs(filepath.Join(s.specDir, "missing")))
	})
}

// TestFailureAndRecovery checks that a failure is logged once and retried, and
// that existing files remain.
func TestFailureAndRecovery(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		libraries := filepath.Join(s.driverRoot, "usr/lib64")
		s.must(os.Rename(libraries, libraries+".away"))
		s.setDevices(makeGPUs(1))
		s.advance(2 * time.Minute)
		s.wantDevices()
		if err := s.state.Err; err == nil || !s.state.Attempted() || len(s.specNames()) > 0 {
			t.Errorf("got error %v and files %q, want an error and no files", err, s.specNames())
		}
		if n := s.countLogLines(""); n != 1 || s.countLogLines("WARN", testDriverVersion) != 1 {
			t.Errorf("got %d log lines, want one warning:\n%s", n, s.log.String())
		}
		s.must(os.Rename(libraries+".away", libraries))
		s.advance(retryInterval)
		s.wantDevices("GPU-0")
		s.must(s.state.Err)

		s.must(os.Rename(libraries, libraries+".away"))
		s.advance(rebuildInterval)
		s.wantDevices("GPU-0")
		if s.state.Err == nil {
			t.Error("error without the driver's files: got none")
		}
	})
}

// TestPeriodicRebuild checks that the Writer finds a new driver file without a
// change of the inventory.
func TestPeriodicRebuild(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		s.setDevices(makeGPUs(1))
		s.touch("run/nvidia-fabricmanager/socket")
		s.advance(rebuildInterval)
		if !strings.Contains(s.readSpec("gpu"), "/host/run/nvidia-fabricmanager/socket") {
			t.Error("the spec lacks the new socket")
		}
		s.must(os.RemoveAll(filepath.Join(s.driverRoot, "run")))
		s.advance(rebuildInterval)
		if strings.Contains(s.readSpec("gpu"), "/run/") {
			t.Error("the spec has the removed socket")
		}
	})
}

// TestInvalidDevice checks that an invalid device affects no other device.
func TestInvalidDevice(t *testing.T) {
	one := makeGPUs(1)[0]
	for name, row := range map[string]struct {
		device device.Device
		want   string
	}{
		"no node": {makeGPUs(3)[2], "skip GPU-2: no device node /dev/nvidia2"},
		"no minor": {
			device.Device{ID: "GPU-x", GPU: "GPU-x", Minor: -1},
			"skip GPU-x: minor number unknown",
		},
		"no capabilities": {
			makeMIGDevice(makeGPUs(2)[1], "MIG-a"),
			"skip MIG-a: device nodes of the capabilities unknown",
		},
		"missing node":        {makeMIGDevice(makeGPUs(2)[1], "MIG-a", 77), "nvidia-cap77"},
		"old driver's id":     {makeMIGDevice(makeGPUs(2)[1], "MIG-GPU-1/7/0", 31), "MIG-GPU-1/7/0"},
		"no name":             {device.Device{Minor: 1}, "skip : "},
		"duplicate name":      {one, "skip GPU-0: name GPU-0 is in use"},
		"name with a newline": {device.Device{ID: "GPU-1\nb", GPU: "GPU-1\nb", Minor: 1}, "skip GPU-1"},
		"path in the address": {device.Device{ID: "GPU-p", GPU: "GPU-p", PCI: "../[", Minor: 1}, "skip GPU-p"},
	} {
		t.Run(name, func(t *testing.T) {
			runWriter(t, 2, nil, func(s *writerFixture) {
				s.setDevices([]device.Device{one, row.device})
				s.wantDevices("GPU-0")
				if err := s.state.Err; err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("error: got %v, want %q", err, row.want)
				}
				s.advance(2 * time.Minute)
				if n := s.countLogLines(""); n != 1 {
					t.Errorf("got %d log lines, want 1:\n%s", n, s.log.String())
				}
			})
		})
	}
}

func TestUnknownDriverVersion(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		unknown := makeGPUs(1)
		unknown[0].InfoLabels = nil
		s.setDevices(unknown)
		s.wantDevices()
		if err := s.state.Err; err == nil || !strings.Contains(err.Error(), "version unknown") {
			t.Errorf("error: got %v, want an unknown version", err)
		}
		s.setDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
	})
}

// TestClasses checks that a class has a spec only if the node has such devices.
func TestClasses(t *testing.T) {
	all := func(o *cdi.Options) {
		o.GDRCopy, o.GDS, o.MOFED, o.IMEXChannels = true, true, true, []int{0, 3}
	}
	runWriter(t, 1, all, func(s *writerFixture) {
		s.setDevices(makeGPUs(1))
		s.must(s.state.Err)
		wantSet(t, "classes", s.state.Classes, "gpu", "imex-channel")
		for _, node := range []string{
			"gdrdrv", "nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0",
			"infiniband/rdma_cm",
		} {
			s.makeNode("dev/" + node)
		}
		s.touch("etc/cufile.json")
		s.advance(rebuildInterval)
		s.must(s.state.Err)
		wantSet(t, "files", s.specNames(), "k8s.device-plugin.nvidia.com-gpu.json",
			"k8s.device-plugin.nvidia.com-imex-channel.json",
			"k8s.device-plugin.nvidia.com-gdrcopy.json", "k8s.device-plugin.nvidia.com-gds.json",
			"k8s.device-plugin.nvidia.com-mofed.json")
		wantSet(t, "devices", s.cdiCache().ListDevices(),
			"k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/imex-channel=0",
			"k8s.device-plugin.nvidia.com/imex-channel=3", "k8s.device-plugin.nvidia.com/gdrcopy=all",
			"k8s.device-plugin.nvidia.com/gds=all", "k8s.device-plugin.nvidia.com/mofed=all")
		for class, want := range map[string]string{
			"imex-channel": `{"path":"/dev/nvidia-caps-imex-channels/channel3",` +
				`"hostPath":"/host/dev/nvidia-caps-imex-channels/channel3"}`,
			"gds":     `{"hostPath":"/host/etc/cufile.json","containerPath":"/etc/cufile.json"`,
			"gdrcopy": `"hostPath":"/host/dev/gdrdrv"`,
			"mofed":   `"hostPath":"/host/dev/infiniband/rdma_cm"`,
		} {
			if !strings.Contains(s.readSpec(class), want) {
				t.Errorf("got spec %s, want it to contain %s", s.readSpec(class), want)
			}
		}
		s.must(os.Remove(filepath.Join(s.driverRoot, "dev/gdrdrv")))
		s.advance(rebuildInterval)
		wantSet(t, "classes", s.state.Classes, "gpu", "imex-channel", "gds", "mofed")
	})
}

func TestFindIMEXChannels(t *testing.T) {
	s := newFixture(t, 0, nil)
	s.makeNode("dev/nvidia-caps-imex-channels/channel0")
	s.touch("dev/nvidia-caps-imex-channels/channel2")
	present, missing := cdi.FindIMEXChannels(s.driverRoot, []int{0, 1, 2})
	if !slices.Equal(present, []int{0}) || !slices.Equal(missing, []int{1, 2}) {
		t.Errorf("channels: got present %v and missing %v, want 0 present, 1 and 2 missing", present, missing)
	}
}

// panickingHandler panics at nvcdi's messages.
type panickingHandler struct{ slog.Handler }

func (h panickingHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "nvcdi" {
		panic("oh")
	}
	return h.Handler.Handle(ctx, r)
}

// TestPanic checks that a panic in a library becomes an error.
func TestPanic(t *testing.T) {
	s := newFixture(t, 1, nil)
	log := slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})
	options := cdi.Options{DriverRoot: s.driverRoot, DevRoot: s.driverRoot}
	s.Writer = cdi.New(options, s.specDir, slog.New(panickingHandler{log}),
		func(state cdi.SpecState) { s.state = state })
	s.setDevices(makeGPUs(1))
	if err := s.state.Err; err == nil || !strings.Contains(err.Error(), "panicked: oh") {
		t.Errorf("error: got %v, want the panic", err)
	}
}
