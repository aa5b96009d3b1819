package cdi

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const version = "570.124.06"

// stage is a node with a made-up driver, and a Writer that has not begun.
type stage struct {
	testing.TB
	*Writer
	board device.Board
	log   *logged
	root  string // the driver's, as this process sees it
	dir   string // of specs
}

// newStage has a driver below a root of its own, and GPUs.
func newStage(t testing.TB, gpus int, change func(*Options)) *stage {
	t.Helper()
	s := &stage{TB: t, root: t.TempDir(), dir: filepath.Join(t.TempDir(), "cdi"), log: &logged{}}
	s.installDriver(gpus)
	o := Options{
		Look: s.board.Look, Log: s.logger(), Dir: s.dir,
		DriverRoot: s.root, TargetDriverRoot: "/host",
	}
	if change != nil {
		change(&o)
	}
	s.Writer = New(o)
	return s
}

func (s *stage) logger() *slog.Logger { return slog.New(slog.NewTextHandler(s.log, nil)) }

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// installDriver makes files that are found by their names alone.
func (s *stage) installDriver(gpus int) {
	s.Helper()
	for _, name := range []string{
		"usr/lib64/libcuda.so." + version, "usr/lib64/libnvidia-ml.so." + version, "usr/bin/nvidia-smi",
		"lib/firmware/nvidia/" + version + "/gsp_ga10x.bin", "run/nvidia-persistenced/socket",
	} {
		s.touch(name)
	}
	for _, name := range []string{"nvidiactl", "nvidia-uvm"} {
		s.node("dev/" + name)
	}
	for i := range gpus {
		s.node(fmt.Sprintf("dev/nvidia%d", i))
	}
}

func (s *stage) touch(name string) {
	s.Helper()
	path := filepath.Join(s.root, name)
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	s.must(os.WriteFile(path, nil, 0o755))
}

// node makes a character device. One of the number 0:0 anybody may make, since
// overlay file systems mark by it what is deleted.
func (s *stage) node(name string) {
	s.Helper()
	path := filepath.Join(s.root, name)
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	s.must(unix.Mknod(path, unix.S_IFCHR|0o666, 0))
	s.must(os.Chmod(path, 0o666)) // whatever the umask
}

// gpus are the first n.
func gpus(n int) []device.Device {
	devices := make([]device.Device, n)
	for i := range devices {
		id := fmt.Sprintf("GPU-%d", i)
		devices[i] = device.Device{
			ID: device.ID(id), GPU: device.GPU(id), Index: i, Minor: i, PCI: fmt.Sprintf("0000:%02x:00.0", i),
			Nodes: []string{fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl", "/dev/nvidia-uvm"},
			Facts: []device.Label{{Name: "driver_version", Value: version}},
		}
	}
	return devices
}

// slice is a part of a GPU, with two capabilities.
func slice(of device.Device, id string, caps ...int) device.Device {
	d := of
	d.ID = device.ID(id)
	d.Nodes = slices.Clone(of.Nodes)
	for _, c := range caps {
		d.Nodes = append(d.Nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", c))
	}
	return d
}

func healthy(devices []device.Device) []device.Status {
	statuses := make([]device.Status, len(devices))
	for i, d := range devices {
		statuses[i] = device.Status{Device: d, Healthy: true}
	}
	return statuses
}

// once makes what Run would make first.
func (s *stage) once(devices []device.Device) {
	s.Helper()
	s.turn(devices)
}

func (s *stage) file(class string) string {
	return filepath.Join(s.dir, "k8s.device-plugin.nvidia.com-"+class+".json")
}

func (s *stage) read(class string) string {
	s.Helper()
	content, err := os.ReadFile(s.file(class))
	s.must(err)
	return string(content)
}

// there are the files in the folder of specs.
func (s *stage) there() []string {
	s.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil && !os.IsNotExist(err) {
		s.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// cache is what a runtime makes of the folder.
func (s *stage) cache() *cdi.Cache {
	s.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.dir), cdi.WithAutoRefresh(false))
	s.must(err)
	s.must(cache.Refresh())
	return cache
}

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines returns how many lines have all words.
func (l *logged) lines(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
