package cdi

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// runWriter runs a Writer and a test body in a synctest bubble.
func runWriter(t *testing.T, gpus int, change func(*Options), body func(*writerFixture)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := newFixture(t, gpus, change)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.repeatUpdate(ctx)
		}()
		s.advance(0)
		body(s)
		cancel()
		<-done
	})
}

// checkInterval is the interval of updates without a change of the inventory.
const checkInterval = time.Second

// repeatUpdate calls Update after each change of the inventory, as podgauge does.
func (s *writerFixture) repeatUpdate(ctx context.Context) {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	for {
		statuses, changed := s.inventory.Get()
		if statuses != nil {
			s.Update(statuses)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-check.C:
		}
	}
}

// advance advances the clock and waits until the Writer is idle.
func (s *writerFixture) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *writerFixture) publishDevices(devices []device.Device) {
	s.inventory.Set(healthyStatuses(devices))
	s.advance(0)
}

func (s *writerFixture) wantDevices(devices ...string) {
	s.Helper()
	if got := s.State().Devices; !slices.Equal(got, devices) {
		s.Fatalf("devices: got %q, want %q, error %v", got, devices, s.State().Err)
	}
	if len(devices) == 0 {
		return
	}
	for _, d := range devices {
		if s.cdiCache().GetDevice("k8s.device-plugin.nvidia.com/gpu="+d) == nil {
			s.Fatalf("device %s is missing in the file", d)
		}
	}
}

func TestSpecsFollowTheInventory(t *testing.T) {
	runWriter(t, 2, nil, func(s *writerFixture) {
		s.publishDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
		s.publishDevices(makeGPUs(2))
		s.wantDevices("GPU-0", "GPU-1")
		wantSet(t, "files", s.specNames(), "k8s.device-plugin.nvidia.com-gpu.json")
		if info, err := os.Stat(s.specPathOf("gpu")); err != nil || info.Mode() != 0o644 {
			t.Errorf("spec file: got %v, %v, want mode 0644", info, err)
		}
		if !s.State().Attempted() || !s.HasSpec("gpu") || s.HasSpec("gds") {
			t.Errorf("specs: got %q, want gpu", s.State().Classes)
		}
		lost := healthyStatuses(makeGPUs(2))
		lost[0].Healthy, lost[0].Reason, lost[0].Gone = false, "gone", true
		s.inventory.Set(lost)
		s.advance(0)
		s.wantDevices("GPU-1")
		s.publishDevices(nil)
		s.wantDevices()
		if files := s.specNames(); len(files) > 0 {
			t.Errorf("files without devices: got %q, want none", files)
		}
		s.publishDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
		if n := s.log.countLines("WARN"); n > 0 {
			t.Errorf("got %d warnings, want 0:\n%s", n, s.log)
		}
	})
}

// TestUnchangedFile checks that a valid file is not rewritten: runtimes read all specs after a change.
func TestUnchangedFile(t *testing.T) {
	runWriter(t, 2, nil, func(s *writerFixture) {
		s.publishDevices(makeGPUs(2))
		before, err := os.Stat(s.specPathOf("gpu"))
		s.must(err)
		statuses := healthyStatuses(makeGPUs(2))
		statuses[1].Healthy, statuses[1].Reason = false, "xid_79"
		s.inventory.Set(statuses)
		s.advance(10 * time.Minute)
		after, err := os.Stat(s.specPathOf("gpu"))
		s.must(err)
		if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Error("the file was rewritten")
		}
		if n := s.log.countLines(""); n != 1 {
			t.Errorf("got %d log lines, want 1:\n%s", n, s.log)
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
				s.publishDevices(makeGPUs(1))
				valid := s.readSpec("gpu")
				change(s)
				s.advance(checkInterval)
				if name == "folder in its place" { // rename fails
					if s.HasSpec("gpu") || s.State().Err == nil || !s.State().Attempted() {
						t.Errorf("state: got %+v, want an attempt with an error and no spec", s.State())
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

// TestFilesOutliveTheWriter checks that specs remain for containers that restart during a rollout.
func TestFilesOutliveTheWriter(t *testing.T) {
	dir := t.TempDir()
	runWriter(t, 1, func(o *Options) { o.Dir = dir }, func(s *writerFixture) { s.publishDevices(makeGPUs(1)) })
	spec, err := cdi.ReadSpec(filepath.Join(dir, "k8s.device-plugin.nvidia.com-gpu.json"), 0)
	if err != nil || len(spec.Devices) != 1 || spec.Devices[0].Name != "GPU-0" {
		t.Errorf("spec after the end: got %v, %v, want device GPU-0", spec, err)
	}
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
	const gpu, gds, other = "k8s.device-plugin.nvidia.com-gpu.json", "k8s.device-plugin.nvidia.com-gds.json", "nvidia.yaml.off"
	t.Run("device gone, class disabled, temporary file", func(t *testing.T) {
		runWriter(t, 2, nil, func(s *writerFixture) {
			leave(s, gpu, gds, other, "spec.1.tmp")
			s.must(os.Chtimes(filepath.Join(s.specDir, "spec.1.tmp"), time.Unix(0, 0), time.Unix(0, 0)))
			s.publishDevices(makeGPUs(1))
			s.wantDevices("GPU-0")
			wantSet(t, "files", s.specNames(), gpu, other)
		})
	})
	t.Run("no devices", func(t *testing.T) {
		runWriter(t, 0, nil, func(s *writerFixture) {
			leave(s, gpu)
			s.publishDevices(makeGPUs(0))
			wantSet(t, "files", s.specNames())
		})
	})
	t.Run("no driver yet", func(t *testing.T) {
		runWriter(t, 0, nil, func(s *writerFixture) {
			leave(s, gpu, gds)
			s.advance(10 * time.Minute)
			wantSet(t, "files", s.specNames(), gpu, gds)
			if s.HasSpec("gpu") {
				t.Error("HasSpec: got true for an unchecked file, want false")
			}
		})
	})
	t.Run("driver files missing", func(t *testing.T) {
		runWriter(t, 0, nil, func(s *writerFixture) {
			s.must(os.RemoveAll(filepath.Join(s.driverRoot, "usr")))
			leave(s, gpu, gds)
			s.publishDevices(makeGPUs(1))
			wantSet(t, "files", s.specNames(), gpu)
			if s.HasSpec("gpu") {
				t.Error("HasSpec: got true for an unchecked file, want false")
			}
		})
	})
	t.Run("newer file of another program", func(t *testing.T) {
		runWriter(t, 1, nil, func(s *writerFixture) {
			s.publishDevices(makeGPUs(1))
			leave(s, gds)
			s.advance(10 * time.Minute)
			wantSet(t, "files", s.specNames(), gpu, gds)
		})
	})
	t.Run("CDI disabled", func(t *testing.T) {
		s := newFixture(t, 0, nil)
		leave(s, gpu, gds, other)
		s.must(RemoveSpecs(s.specDir))
		wantSet(t, "files", s.specNames(), other)
		s.must(RemoveSpecs(filepath.Join(s.specDir, "missing")))
	})
}

// TestStatePublished checks that each change of the state is published once.
func TestStatePublished(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		_, first := s.state.Get()
		s.publishDevices(makeGPUs(1))
		select {
		case <-first:
		default:
			t.Error("publication after a change: got none, want one")
		}
		_, second := s.state.Get()
		s.advance(10 * time.Minute)
		select {
		case <-second:
			t.Error("publication of an equal state: got one, want none")
		default:
		}
		if !s.HasSpec("gpu") {
			t.Errorf("classes: got %q, want gpu", s.State().Classes)
		}
	})
}

// TestTruncatedFileOfAnEarlierProcess checks that a truncated file is replaced.
func TestTruncatedFileOfAnEarlierProcess(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		s.must(os.MkdirAll(s.specDir, 0o755))
		s.must(os.WriteFile(s.specPathOf("gpu"), []byte("{"), 0o600))
		s.publishDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
	})
}

// TestFailureAndRecovery checks that a failure is logged once and retried, and that existing files remain.
func TestFailureAndRecovery(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		libraries := filepath.Join(s.driverRoot, "usr/lib64")
		s.must(os.Rename(libraries, libraries+".away"))
		s.publishDevices(makeGPUs(1))
		s.advance(10 * time.Minute)
		s.wantDevices()
		if err := s.State().Err; err == nil || !s.State().Attempted() || len(s.specNames()) > 0 {
			t.Errorf("got error %v and files %q, want an error and no files", err, s.specNames())
		}
		if n := s.log.countLines(""); n != 1 || s.log.countLines("WARN", testDriverVersion) != 1 {
			t.Errorf("got %d log lines, want one warning:\n%s", n, s.log)
		}
		s.must(os.Rename(libraries+".away", libraries))
		s.advance(retryInterval)
		s.wantDevices("GPU-0")
		s.must(s.State().Err)

		s.must(os.Rename(libraries, libraries+".away"))
		s.advance(rebuildInterval)
		s.wantDevices("GPU-0")
		if s.State().Err == nil {
			t.Error("error without the driver's files: got none")
		}
	})
}

// TestPeriodicRebuild checks that the Writer finds a new driver file without a change of the inventory.
func TestPeriodicRebuild(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		s.publishDevices(makeGPUs(1))
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
		"no node":             {makeGPUs(3)[2], "skip GPU-2: no device node /dev/nvidia2"},
		"no minor":            {device.Device{ID: "GPU-x", GPU: "GPU-x", Minor: -1}, "skip GPU-x: minor number unknown"},
		"no capabilities":     {makeMIGDevice(makeGPUs(2)[1], "MIG-a"), "skip MIG-a: device nodes of the capabilities unknown"},
		"missing node":        {makeMIGDevice(makeGPUs(2)[1], "MIG-a", 77), "nvidia-cap77"},
		"old driver's id":     {makeMIGDevice(makeGPUs(2)[1], "MIG-GPU-1/7/0", 31), "MIG-GPU-1/7/0"},
		"no name":             {device.Device{Minor: 1}, "skip : "},
		"duplicate name":      {one, "skip GPU-0: name GPU-0 is in use"},
		"name with a newline": {device.Device{ID: "GPU-1\nb", GPU: "GPU-1\nb", Minor: 1}, "skip GPU-1"},
		"path in the address": {device.Device{ID: "GPU-p", GPU: "GPU-p", PCI: "../[", Minor: 1}, "skip GPU-p"},
	} {
		t.Run(name, func(t *testing.T) {
			runWriter(t, 2, nil, func(s *writerFixture) {
				s.publishDevices([]device.Device{one, row.device})
				s.wantDevices("GPU-0")
				if err := s.State().Err; err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("error: got %v, want %q", err, row.want)
				}
				s.advance(10 * time.Minute)
				if n := s.log.countLines(""); n != 1 {
					t.Errorf("got %d log lines, want 1:\n%s", n, s.log)
				}
			})
		})
	}
}

func TestNoDriver(t *testing.T) {
	runWriter(t, 1, nil, func(s *writerFixture) {
		s.advance(10 * time.Minute)
		if n := s.log.countLines(""); n != 0 {
			t.Errorf("got %d log lines, want 0:\n%s", n, s.log)
		}
		if s.State().Attempted() {
			t.Errorf("Attempted without an inventory: got true with error %v, want false", s.State().Err)
		}
		unknown := makeGPUs(1)
		unknown[0].InfoLabels = nil
		s.publishDevices(unknown)
		s.wantDevices()
		if err := s.State().Err; err == nil || !strings.Contains(err.Error(), "version unknown") {
			t.Errorf("error: got %v, want an unknown version", err)
		}
		s.publishDevices(makeGPUs(1))
		s.wantDevices("GPU-0")
	})
}

// TestClasses checks that a class has a spec only if the node has such devices.
func TestClasses(t *testing.T) {
	all := func(o *Options) {
		o.GDRCopy, o.GDS, o.MOFED, o.IMEXChannels = true, true, true, []int{0, 3}
	}
	runWriter(t, 1, all, func(s *writerFixture) {
		s.publishDevices(makeGPUs(1))
		s.must(s.State().Err)
		wantSet(t, "classes", s.State().Classes, "gpu", "imex-channel")
		for _, node := range []string{"gdrdrv", "nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "infiniband/rdma_cm"} {
			s.makeNode("dev/" + node)
		}
		s.touch("etc/cufile.json")
		s.advance(rebuildInterval)
		s.must(s.State().Err)
		wantSet(t, "files", s.specNames(), "k8s.device-plugin.nvidia.com-gpu.json", "k8s.device-plugin.nvidia.com-imex-channel.json",
			"k8s.device-plugin.nvidia.com-gdrcopy.json", "k8s.device-plugin.nvidia.com-gds.json", "k8s.device-plugin.nvidia.com-mofed.json")
		wantSet(t, "devices", s.cdiCache().ListDevices(),
			"k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/imex-channel=0",
			"k8s.device-plugin.nvidia.com/imex-channel=3", "k8s.device-plugin.nvidia.com/gdrcopy=all",
			"k8s.device-plugin.nvidia.com/gds=all", "k8s.device-plugin.nvidia.com/mofed=all")
		for class, want := range map[string]string{
			"imex-channel": `{"path":"/dev/nvidia-caps-imex-channels/channel3","hostPath":"/host/dev/nvidia-caps-imex-channels/channel3"}`,
			"gds":          `{"hostPath":"/host/etc/cufile.json","containerPath":"/etc/cufile.json"`,
			"gdrcopy":      `"hostPath":"/host/dev/gdrdrv"`,
			"mofed":        `"hostPath":"/host/dev/infiniband/rdma_cm"`,
		} {
			if !strings.Contains(s.readSpec(class), want) {
				t.Errorf("got spec %s, want it to contain %s", s.readSpec(class), want)
			}
		}
		s.must(os.Remove(filepath.Join(s.driverRoot, "dev/gdrdrv")))
		s.advance(rebuildInterval)
		wantSet(t, "classes", s.State().Classes, "gpu", "imex-channel", "gds", "mofed")
	})
}

func TestFindIMEXChannels(t *testing.T) {
	s := newFixture(t, 0, nil)
	s.makeNode("dev/nvidia-caps-imex-channels/channel0")
	s.touch("dev/nvidia-caps-imex-channels/channel2")
	present, missing := FindIMEXChannels(s.driverRoot, []int{0, 1, 2})
	if !slices.Equal(present, []int{0}) || !slices.Equal(missing, []int{1, 2}) {
		t.Errorf("channels: got present %v and missing %v, want 0 present, 1 and 2 missing", present, missing)
	}
}

// TestPanic checks that a panic in a library becomes an error.
func TestPanic(t *testing.T) {
	runWriter(t, 1, func(o *Options) { o.DeviceName = func(device.Device) string { panic("oh") } }, func(s *writerFixture) {
		s.publishDevices(makeGPUs(1))
		if err := s.State().Err; err == nil || !strings.Contains(err.Error(), "panicked: oh") {
			t.Errorf("error: got %v, want the panic", err)
		}
	})
}
