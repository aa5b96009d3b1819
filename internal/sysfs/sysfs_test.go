package sysfs_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/sysfs"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// infiniband are the files of a port of mlx5, with counters that differ.
var infiniband = map[string]string{
	"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "400 Gb/sec (4X NDR)\n", "link_layer": "InfiniBand\n",
	"counters/port_rcv_data": "1000\n", "counters/port_xmit_data": "2000\n", "counters/link_downed": "1\n",
	"counters/link_error_recovery": "2\n", "counters/symbol_error": "3\n", "counters/port_rcv_errors": "4\n",
	"counters/local_link_integrity_errors": "5\n", "counters/excessive_buffer_overrun_errors": "6\n",
	"hw_counters/out_of_sequence": "7\n", "hw_counters/local_ack_timeout_err": "8\n",
}

// efa are the files of a port of AWS' efa.
var efa = map[string]string{
	"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "100 Gb/sec (4X EDR)\n", "link_layer": "Unspecified\n",
	"hw_counters/rx_bytes": "100\n", "hw_counters/tx_bytes": "200\n",
}

// tree is a sysfs.
type tree fstest.MapFS

func (s tree) write(path, content string) { s[path] = &fstest.MapFile{Data: []byte(content)} }

func (s tree) link(path, target string) {
	s[path] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

// add adds an RDMA device with a port, as the kernel links it.
func (s tree) add(name, parent, netInterface string, port map[string]string) {
	folder := "devices/pci0000:00/" + parent
	s.link("class/infiniband/"+name, "../../"+folder+"/infiniband/"+name)
	s.link(folder+"/infiniband/"+name+"/device", "../../../"+parent)
	if netInterface != "" {
		s.write(folder+"/net/"+netInterface+"/operstate", "up\n")
	}
	for file, content := range port {
		s.write(folder+"/infiniband/"+name+"/ports/1/"+file, content)
	}
}

func newTree() tree {
	s := tree{}
	s.add("mlx5_0", "0000:3b:00.0", "ib0", infiniband)
	s.add("mlx5_1", "0000:5e:00.0", "enp94s0f0np0.10", infiniband)
	s.add("mlx5_2", "mlx5_core.sf.4", "", infiniband)
	s.add("rdmap79s0", "0000:4f:00.0", "", efa)
	return s
}

// read returns a reading, regardless of the load of the machine.
func read(t *testing.T, root fs.FS) (reading *sysfs.Reading) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		reading = sysfs.New(sysfs.Options{Root: root, RDMA: true, CPU: true, Log: slog.New(slog.DiscardHandler)}).Read(t.Context())
	})
	if reading == nil {
		t.Fatal("no reading")
	}
	return reading
}

// values returns the values of a port, in the order of the metrics; NaN: missing.
func values(r *sysfs.Reading, name string) string {
	all := slices.Repeat([]float64{math.NaN()}, len(sysfs.PortMetrics()))
	for _, p := range r.Ports {
		for _, s := range p.Samples {
			if p.Device == name {
				all[s.Metric] = s.Value
			}
		}
	}
	return strings.ReplaceAll(fmt.Sprint(all), "NaN", "-")
}

func TestPorts(t *testing.T) {
	s := newTree()
	s.write("devices/pci0000:00/0000:5e:00.0/infiniband/mlx5_1/ports/1/state", "2: INIT\n")
	s.write("devices/pci0000:00/0000:5e:00.0/infiniband/mlx5_1/ports/1/rate", "2.5 Gb/sec (1X SDR)\n")
	r := read(t, fstest.MapFS(s))
	expect.Equal(t, values(r, "mlx5_0"), "[1 5 5e+10 4000 8000 1 2 3 4 5 6 7 8]")
	expect.Equal(t, values(r, "mlx5_1"), "[0 5 3.125e+08 4000 8000 1 2 3 4 5 6 7 8]")
	expect.Equal(t, values(r, "rdmap79s0"), "[1 5 1.25e+10 100 200 - - - - - - - -]")
	expect.Equal(t, fmt.Sprint(r.Ports[0].Device, r.Ports[0].Port, r.Ports[0].LinkLayer, r.Ports[0].PCI), "mlx5_01InfiniBand0000:3b:00.0")
	expect.Equal(t, len(read(t, fstest.MapFS{}).Ports), 0)
}

// TestFileOfAPort checks that a file that is missing or has other content drops its value only.
func TestFileOfAPort(t *testing.T) {
	all := read(t, fstest.MapFS(newTree()))
	for file := range infiniband {
		for _, content := range []string{"", "x", "N/A (no PMA)", "-1", "NaN Gb/sec", "99999999999999999999", strings.Repeat("1", 1<<16)} {
			s := newTree()
			s.write("devices/pci0000:00/0000:3b:00.0/infiniband/mlx5_0/ports/1/"+file, content)
			if content == "" {
				delete(s, "devices/pci0000:00/0000:3b:00.0/infiniband/mlx5_0/ports/1/"+file)
			}
			r := read(t, fstest.MapFS(s))
			missing := strings.Count(values(r, "mlx5_0"), "-")
			expect.Equal(t, missing, map[bool]int{true: 0, false: 1}[file == "link_layer"], file, content)
			expect.Equal(t, values(r, "mlx5_1"), values(all, "mlx5_1"), file, content)
		}
	}
}

// TestAllocations has the ids of device plugins and DRA drivers.
func TestAllocations(t *testing.T) {
	owner := allocation.Owner{Namespace: "n", Pod: "p", Container: "c"}
	single := tree{}
	single.add("mlx5_0", "0000:3b:00.0", "ib0", infiniband)
	for _, c := range []struct {
		name, resource, id, want string
		on                       tree
	}{
		{"sriov-network-device-plugin", "nvidia.com/sriov", "0000:3b:00.0", "mlx5_0", newTree()},
		{"scalable function", "nvidia.com/sf", "mlx5_core.sf.4", "mlx5_2", newTree()},
		{"EFA", "vpc.amazonaws.com/efa", "rdmap79s0", "rdmap79s0", newTree()},
		{"dra-driver-sriov", "sriovnetwork.k8snetworkplumbingwg.io", "0000-5e-00-0", "mlx5_1", newTree()},
		{"DRANET, PCI", "dra.net", "pci-0000-5e-00-0", "mlx5_1", newTree()},
		{"DRANET, interface", "dra.net", "ib0", "mlx5_0", newTree()},
		{"DRANET, encoded interface", "dra.net", "net-mvxhaojuomygmmdooayc4mjq", "mlx5_1", newTree()},
		{"shared, several devices", "rdma/hca_shared", "17", "", newTree()},
		{"shared, one device", "rdma/hca_shared", "17", "mlx5_0", single},
		{"number of another resource", "example.com/fuse", "17", "", single},
		{"GPU", "nvidia.com/gpu", "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50", "", newTree()},
		{"path", "example.com/nic", "../infiniband/mlx5_0", "", newTree()},
		{"empty", "example.com/nic", "", "", newTree()},
	} {
		var s allocation.ResourceSet
		if strings.Contains(c.resource, "/") {
			s.Devices = []allocation.ResourceDevice{{Owner: owner, Resource: c.resource, ID: c.id}}
		} else {
			s.Claims = []allocation.Claim{{Owner: owner, Driver: c.resource, Device: c.id}}
		}
		got := ""
		for _, a := range read(t, fstest.MapFS(c.on)).Allocations(&s) {
			got += a.Device
			expect.Equal(t, a.Owner, owner, c.name)
			expect.Equal(t, a.Resource+" "+a.ID, c.resource+" "+c.id, c.name)
		}
		expect.Equal(t, got, c.want, c.name)
	}
}

// TestAllocationsOfClaims checks CDI names, and a row that the kubelet lists twice.
func TestAllocationsOfClaims(t *testing.T) {
	claim := allocation.Claim{Driver: "example.com", Device: "nic-0", CDI: []string{"bad", "example.com/net=mlx5_1"}}
	s := allocation.ResourceSet{Claims: []allocation.Claim{claim, claim}}
	got := read(t, fstest.MapFS(newTree())).Allocations(&s)
	expect.DeepEqual(t, got, []sysfs.Allocation{{Device: "mlx5_1", Resource: "example.com", ID: "nic-0"}})
}

func TestSensors(t *testing.T) {
	s := tree{}
	hwmon := func(folder, label, value string) {
		s.write("class/hwmon/"+folder+"/power1_oem_info", label+"\n")
		s.write("class/hwmon/"+folder+"/power1_average", value+"\n")
	}
	hwmon("hwmon1/device", "Module Power Socket 0", "512000000")
	hwmon("hwmon2/device", "Grace Power Socket 0", "98029000")
	hwmon("hwmon3", "CPU Power Socket 0", "46046000")
	hwmon("hwmon4", "SysIO Power Socket 1", "9500000")
	hwmon("hwmon5", "CPU Rail Power in uW socket 1", "70000000")
	hwmon("hwmon6", "Total CPU Energy In uJ socket 0", "1000000")
	hwmon("hwmon7", "Power Supply", "1000000")
	hwmon("hwmon7b", "CPU power socket 0", "1000000") // the name of an earlier one
	hwmon("hwmon8", "DRAM Power in uW socket 1", "unknown")
	s.write("class/hwmon/hwmon0/name", "nvme\n")
	for i, zone := range [][2]string{{"Skt0 CPU0", "45500"}, {"Skt0 TJMax", "51000"}, {"Skt0 TLimit", "40000"}, {"Skt 1 SOC0", "-500"}} {
		s.write(fmt.Sprintf("class/thermal/thermal_zone%d/device/description", i), "Thermal Zone "+zone[0]+"\n")
		s.write(fmt.Sprintf("class/thermal/thermal_zone%d/temp", i), zone[1]+"\n")
	}
	var got strings.Builder
	for _, sensor := range read(t, fstest.MapFS(s)).Sensors {
		fmt.Fprintf(&got, "%s %s %s %.3f\n", strings.TrimPrefix(sensor.Metric, "podgauge_cpu_"), sensor.Socket, sensor.Sensor, sensor.Value)
	}
	expect.Equal(t, got.String(), `power_watts 0 module 512.000
power_watts 0 grace 98.029
power_watts 0 cpu 46.046
power_watts 1 sysio 9.500
power_watts 1 cpu_rail 70.000
temperature_celsius 0 cpu0 45.500
temperature_celsius 0 tjmax 51.000
temperature_celsius 1 soc0 -0.500
`)
}

// hangingFS is a sysfs in which paths hang until they are released.
type hangingFS struct {
	fstest.MapFS

	hang     func(path string) bool
	released chan struct{}
	opened   atomic.Int32
}

func (f *hangingFS) Open(path string) (fs.File, error) {
	f.opened.Add(1)
	if f.hang(path) {
		<-f.released
	}
	return f.MapFS.Open(path)
}

func (f *hangingFS) ReadDir(path string) ([]fs.DirEntry, error) {
	if f.hang(path) {
		<-f.released
	}
	return f.MapFS.ReadDir(path)
}

func newHangingFS(hang func(string) bool) *hangingFS {
	return &hangingFS{MapFS: fstest.MapFS(newTree()), hang: hang, released: make(chan struct{})}
}

// TestHangingFile checks that a file that hangs drops the later values of its device only, delays a scrape once, that no file of the device is
// read until it returns, and that it is one line in the log.
func TestHangingFile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newHangingFS(func(path string) bool { return strings.HasSuffix(path, "mlx5_0/ports/1/counters/symbol_error") })
		var log bytes.Buffer
		r := sysfs.New(sysfs.Options{Root: f, RDMA: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
		expect.Equal(t, f.opened.Load(), 0, "opened before the first read")
		begin := time.Now()
		first := r.Read(t.Context())
		expect.Equal(t, time.Since(begin), 50*time.Millisecond)
		expect.Equal(t, values(first, "mlx5_0"), "[1 5 5e+10 4000 8000 1 2 - - - - - -]")
		expect.Equal(t, values(first, "mlx5_1"), "[1 5 5e+10 4000 8000 1 2 3 4 5 6 7 8]")
		for range 10 {
			begin, opened := time.Now(), f.opened.Load()
			later := r.Read(t.Context())
			expect.Equal(t, values(later, "mlx5_0"), "[- - - - - - - - - - - - -]")
			expect.Equal(t, values(later, "mlx5_1"), "[1 5 5e+10 4000 8000 1 2 3 4 5 6 7 8]")
			expect.Equal(t, later.Ports[0].LinkLayer+later.Ports[1].LinkLayer, "InfiniBand", "the link layer of a NIC that hangs")
			expect.Equal(t, time.Since(begin), 0, "delay of a later scrape")
			expect.Equal(t, f.opened.Load()-opened < opened, true, "another read of the file")
		}
		expect.Contains(t, log.String(), "ports/1/counters/symbol_error: no answer within 50ms")
		expect.Equal(t, strings.Count(log.String(), "\n"), 1, log.String())
		close(f.released)
		synctest.Wait()
		expect.Equal(t, values(r.Read(t.Context()), "mlx5_0"), "[1 5 5e+10 4000 8000 1 2 3 4 5 6 7 8]")
	})
}

// TestHangingFolder checks that only the scrape that begins a reading waits, 200 ms, and that no reading is older than a minute.
func TestHangingFolder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		f := newHangingFS(func(string) bool { return hangs.Load() })
		r := sysfs.New(sysfs.Options{Root: f, RDMA: true, Log: slog.New(slog.DiscardHandler)})
		first := r.Read(t.Context())
		hangs.Store(true)
		begin := time.Now()
		expect.Equal(t, r.Read(t.Context()), first)
		expect.Equal(t, time.Since(begin), 200*time.Millisecond)
		for range 10 {
			expect.Equal(t, r.Read(t.Context()), first)
		}
		expect.Equal(t, time.Since(begin), 200*time.Millisecond, "with the waits of later scrapes")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		time.Sleep(59 * time.Second)
		expect.Equal(t, r.Read(ctx), first)
		time.Sleep(time.Second)
		expect.Equal(t, r.Read(ctx), nil)
		hangs.Store(false)
		close(f.released)
		synctest.Wait()
		expect.Equal(t, len(r.Read(t.Context()).Ports), len(first.Ports))
	})
}

// TestHangingDriver checks that at most 64 reads hang, and that a slow reading ends.
func TestHangingDriver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := tree{}
		for i := range 70 {
			s.add(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("0000:%02x:00.0", i), "", infiniband)
		}
		var hanging atomic.Int32
		f := newHangingFS(func(path string) bool {
			hangs := strings.HasSuffix(path, "counters/symbol_error")
			if hangs {
				hanging.Add(1)
			}
			return hangs
		})
		f.MapFS = fstest.MapFS(s)
		r := sysfs.New(sysfs.Options{Root: f, RDMA: true, Log: slog.New(slog.DiscardHandler)})
		expect.Equal(t, r.Read(t.Context()), nil)
		for range 10 {
			time.Sleep(time.Minute)
			expect.Equal(t, len(r.Read(t.Context()).Ports), 70)
			expect.Equal(t, hanging.Load(), 64)
		}
		close(f.released)
		synctest.Wait()
		reading := r.Read(t.Context())
		for i := range 70 {
			expect.Equal(t, values(reading, fmt.Sprintf("mlx5_%d", i)), "[1 5 5e+10 4000 8000 1 2 3 4 5 6 7 8]")
		}
	})
}

// TestMissingFiles checks that files that a driver lacks are not in the log, and that counters missing in a network namespace are.
func TestMissingFiles(t *testing.T) {
	other := tree{}
	other.add("mlx5_0", "0000:3b:00.0", "", map[string]string{"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "1 Gb/sec", "link_layer": "x"})
	unparsable := newTree()
	unparsable.write("devices/pci0000:00/0000:3b:00.0/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "N/A (no PMA)")
	for _, c := range []struct {
		name string
		tree tree
		want string
	}{
		{"mlx5 and efa", newTree(), ""},
		{"another network namespace", other, "values=10"},
		{"unparsable", unparsable, "values=1 "},
	} {
		bubble.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			sysfs.New(sysfs.Options{Root: fstest.MapFS(c.tree), RDMA: true, Log: slog.New(slog.NewTextHandler(&log, nil))}).Read(t.Context())
			expect.Contains(t, log.String(), c.want, c.name)
			expect.Equal(t, log.Len() == 0, c.want == "", c.name, log.String())
		})
	}
}

// TestRoot checks that a link out of the folder is not followed, and that links of the kernel are.
func TestRoot(t *testing.T) {
	folder := t.TempDir()
	port := filepath.Join(folder, "sys/devices/0000:3b:00.0/infiniband/mlx5_0/ports/1")
	require.NoError(t, os.MkdirAll(port, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "sys/class/infiniband"), 0o700))
	require.NoError(t, os.Symlink("../../devices/0000:3b:00.0/infiniband/mlx5_0", filepath.Join(folder, "sys/class/infiniband/mlx5_0")))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "secret"), []byte("4: ACTIVE"), 0o600))
	require.NoError(t, os.Symlink("../../../../../../../secret", filepath.Join(port, "state")))
	require.NoError(t, os.WriteFile(filepath.Join(port, "phys_state"), []byte("5: LinkUp"), 0o600))
	root, err := os.OpenRoot(filepath.Join(folder, "sys"))
	require.NoError(t, err)
	defer root.Close()
	expect.Equal(t, values(read(t, root.FS()), "mlx5_0"), "[- 5 - - - - - - - - - - -]")
}

// TestLimits checks that a folder with many devices is one line in the log.
func TestLimits(t *testing.T) {
	s := tree{}
	for i := range 300 {
		s.add(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("0000:00:%x", i), "", map[string]string{"state": "4: ACTIVE"})
	}
	var log bytes.Buffer
	r := sysfs.New(sysfs.Options{Root: fstest.MapFS(s), RDMA: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	bubble.Test(t, func(t *testing.T) { // on a slow machine, a reading would outlast the test
		for range 4 {
			expect.Equal(t, len(r.Read(t.Context()).Ports), 256)
		}
	})
	expect.Equal(t, strings.Count(log.String(), "\n"), 1)
	expect.Contains(t, log.String(), "list class/infiniband: 300 entries, only the first 256 are read")
}

// FuzzAllocations checks that ids only find devices that sysfs lists.
func FuzzAllocations(f *testing.F) {
	f.Add("nvidia.com/sriov", "0000:3b:00.0", "nvidia.com/net=mlx5_0")
	f.Add("rdma/hca", "17", "")
	f.Add("dra.net", "../../etc", "=")
	f.Add("dra.net", "/sys/class/infiniband/mlx5_0", "a/b=../mlx5_0")
	var r *sysfs.Reading
	f.Fuzz(func(t *testing.T, resource, id, cdi string) {
		if r == nil {
			r = read(t, fstest.MapFS(newTree()))
		}
		s := allocation.ResourceSet{
			Devices: []allocation.ResourceDevice{{Resource: resource, ID: id}},
			Claims:  []allocation.Claim{{Driver: resource, Device: id, CDI: []string{cdi}}},
		}
		for _, a := range r.Allocations(&s) {
			if !slices.ContainsFunc(r.Ports, func(p sysfs.Port) bool { return p.Device == a.Device }) {
				t.Errorf("%q: device %q", id, a.Device)
			}
			if strings.ContainsAny(id, "/") && !strings.Contains(cdi, "=") {
				t.Errorf("%q is device %q", id, a.Device)
			}
		}
	})
}

// FuzzFiles checks that all values are numbers, whatever files and names are.
func FuzzFiles(f *testing.F) {
	f.Add("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)", "1", "Grace Power Socket 0", "Thermal Zone Skt0 CPU0")
	f.Add("..", "", "NaN Gb/sec", "18446744073709551615", "Power Socket", "Thermal Zone Skt0 TLimit")
	f.Add("a", "9", "1e999 Gb/sec", "-1", "a power in uW socket 1", "")
	f.Fuzz(func(t *testing.T, name, state, rate, counter, power, zone string) {
		s := tree{}
		if fs.ValidPath(name) && !strings.Contains(name, "/") {
			s.add(name, "0000:3b:00.0", "", map[string]string{"state": state, "phys_state": state, "rate": rate, "counters/port_rcv_data": counter})
		}
		s.write("class/hwmon/hwmon0/power1_oem_info", power)
		s.write("class/hwmon/hwmon0/power1_average", counter)
		s.write("class/thermal/zone/device/description", zone)
		s.write("class/thermal/zone/temp", counter)
		reading := sysfs.New(sysfs.Options{Root: fstest.MapFS(s), RDMA: true, CPU: true, Log: slog.New(slog.DiscardHandler)}).Read(t.Context())
		if reading == nil { // of a slow machine
			return
		}
		for _, p := range reading.Ports {
			for _, sample := range p.Samples {
				if math.IsNaN(sample.Value) || math.IsInf(sample.Value, 0) || sample.Value < 0 {
					t.Errorf("metric %d is %v", sample.Metric, sample.Value)
				}
			}
		}
		for _, sensor := range reading.Sensors {
			if sensor.Sensor == "" || sensor.Socket == "" || math.IsInf(sensor.Value, 0) {
				t.Errorf("sensor %v", sensor)
			}
		}
	})
}
