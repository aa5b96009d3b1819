package cdi_test

import (
	"context"
	"errors"
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
	"github.com/podgauge/podgauge/test/helpers/expect"
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
	hasSpec := slices.Contains(s.state.Classes, "gpu")
	if got := s.cdiCache().ListDevices(); !slices.Equal(got, want) || hasSpec != (len(want) > 0) {
		s.Fatalf("devices: got %q, want %q, state %+v", got, want, s.state)
	}
}

// wantError requires an error of the state, and one log line in all; "": none.
func (s *writerFixture) wantError(text string) {
	s.Helper()
	err := s.state.Err
	if (err != nil) != (text != "") || err != nil && !strings.Contains(err.Error(), text) || !s.state.Attempted() {
		s.Errorf("error: got %v, want %q", err, text)
	}
	if n := s.countLogLines(""); n != 1 {
		s.Errorf("got %d log lines, want 1:\n%s", n, s.log.String())
	}
}

func TestSpecsFollowTheInventory(t *testing.T) {
	runWriter(t, 2, nil, func(s *writerFixture) {
		s.setDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
		s.setDevices(makeGPUs(2))
		s.wantDevices("GPU-0", "GPU-1")
		s.wantFiles("files", "gpu")
		if info, err := os.Stat(s.specPathOf("gpu")); err != nil || info.Mode() != 0o644 {
			t.Errorf("spec file: got %v, %v, want mode 0644", info, err)
		}
		lost := healthyStatuses(makeGPUs(2))
		lost[0].Healthy, lost[0].Reason, lost[0].Gone = false, "gone", true
		s.Update(lost)
		s.wantDevices("GPU-1")
		s.setDevices(nil)
		s.wantDevices()
		s.wantFiles("without devices")
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
		s.wantError("")
	})
}

func TestFileRestored(t *testing.T) {
	for name, change := range map[string]func(s *writerFixture, path string) error{
		"removed":        func(_ *writerFixture, path string) error { return os.Remove(path) },
		"folder removed": func(s *writerFixture, _ string) error { return os.RemoveAll(s.specDir) },
		"altered":        func(_ *writerFixture, path string) error { return os.WriteFile(path, []byte("{}"), 0o644) },
		"replaced": func(s *writerFixture, path string) error {
			other := filepath.Join(s.TempDir(), "other")
			return errors.Join(os.WriteFile(other, []byte("{}"), 0o644), os.Rename(other, path))
		},
		"folder in its place": func(_ *writerFixture, path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		},
	} {
		runWriter(t, 1, nil, func(s *writerFixture) {
			s.setDevices(makeGPUs(1))
			valid := s.readSpec("gpu")
			s.must(change(s, s.specPathOf("gpu")))
			s.advance(checkInterval)
			if name == "folder in its place" { // rename fails
				if s.state.Classes != nil || s.state.Err == nil {
					t.Errorf("state: got %+v, want an error and no spec", s.state)
				}
				s.must(os.Remove(s.specPathOf("gpu")))
				s.advance(retryInterval)
			}
			expect.Equal(t, s.readSpec("gpu"), valid, name, "spec")
			s.wantDevices("GPU-0")
		})
	}
}

// TestNextWriter checks the handling of files from an earlier process.
func TestNextWriter(t *testing.T) {
	const tmp = "spec.1.tmp"
	for name, c := range map[string]struct {
		gpus int
		run  func(s *writerFixture)
		want []string
	}{
		"device gone, class disabled": {2, func(s *writerFixture) {
			s.setDevices(makeGPUs(1))
			s.wantDevices("GPU-0")
		}, []string{"gpu", "nvidia.yaml.off"}},
		"no devices": {0, func(s *writerFixture) { s.setDevices(makeGPUs(0)) }, []string{"nvidia.yaml.off"}},
		"driver files missing": {0, func(s *writerFixture) {
			s.must(os.RemoveAll(filepath.Join(s.driverRoot, "usr")))
			s.setDevices(makeGPUs(1))
			if s.state.Classes != nil {
				t.Error("got a spec from an unchecked file")
			}
		}, []string{"gpu", "nvidia.yaml.off"}},
		"CDI disabled": {0, func(s *writerFixture) {
			s.must(cdi.RemoveSpecs(s.specDir))
			s.must(cdi.RemoveSpecs(filepath.Join(s.specDir, "missing")))
		}, []string{"nvidia.yaml.off", tmp}},
	} {
		runWriter(t, c.gpus, nil, func(s *writerFixture) {
			s.must(os.MkdirAll(s.specDir, 0o755))
			for _, path := range []string{
				s.specPathOf("gpu"), s.specPathOf("gds"), s.specDir + "/nvidia.yaml.off", s.specDir + "/" + tmp,
			} {
				s.must(os.WriteFile(path, []byte("{}"), 0o644))
				s.must(os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0)))
			}
			c.run(s)
			s.wantFiles(name, c.want...)
		})
	}
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
		s.wantFiles("without the driver's files")
		s.wantError(testDriverVersion)
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
	one, two := makeGPUs(1)[0], makeGPUs(2)[1]
	for want, invalid := range map[string]device.Device{
		"skip GPU-2: no device node /dev/nvidia2":              makeGPUs(3)[2],
		"skip GPU-x: minor number unknown":                     {ID: "GPU-x", GPU: "GPU-x", Minor: -1},
		"skip MIG-a: device nodes of the capabilities unknown": makeMIGDevice(two, "MIG-a"),
		"nvidia-cap77":                     makeMIGDevice(two, "MIG-a", 77),
		"MIG-GPU-1/7/0":                    makeMIGDevice(two, "MIG-GPU-1/7/0", 31), // of an old driver
		"skip : ":                          {Minor: 1},
		"skip GPU-0: name GPU-0 is in use": one,
		"skip GPU-1":                       {ID: "GPU-1\nb", GPU: "GPU-1\nb", Minor: 1},
		"skip GPU-p":                       {ID: "GPU-p", GPU: "GPU-p", PCI: "../[", Minor: 1},
	} {
		runWriter(t, 2, nil, func(s *writerFixture) {
			s.setDevices([]device.Device{one, invalid})
			s.advance(2 * time.Minute)
			s.wantDevices("GPU-0")
			s.wantError(want)
		})
	}
	runWriter(t, 1, nil, func(s *writerFixture) {
		unknown := makeGPUs(1)
		unknown[0].InfoLabels = nil
		s.setDevices(unknown)
		s.wantDevices()
		s.wantError("version unknown")
		s.setDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
	})
}

// TestClasses checks that a class has a spec only if the node has such devices.
func TestClasses(t *testing.T) {
	all := func(o *cdi.Options) { o.GDRCopy, o.GDS, o.MOFED, o.IMEXChannels = true, true, true, []int{0, 3} }
	runWriter(t, 1, all, func(s *writerFixture) {
		s.setDevices(makeGPUs(1))
		s.must(s.state.Err)
		wantSet(t, "classes", s.state.Classes, "gpu", "imex-channel")
		s.makeNodes("dev/gdrdrv", "dev/nvidia-fs0", "dev/nvidia-fs1", "dev/infiniband/uverbs0", "dev/infiniband/rdma_cm")
		s.touch("etc/cufile.json")
		s.advance(rebuildInterval)
		s.must(s.state.Err)
		s.wantFiles("all classes", "gpu", "imex-channel", "gdrcopy", "gds", "mofed")
		const kind = "k8s.device-plugin.nvidia.com/"
		wantSet(t, "devices", s.cdiCache().ListDevices(), kind+"gpu=GPU-0", kind+"imex-channel=0", kind+"imex-channel=3",
			kind+"gdrcopy=all", kind+"gds=all", kind+"mofed=all")
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
	s.makeNodes("dev/nvidia-caps-imex-channels/channel0")
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
