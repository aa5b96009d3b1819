package sim

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

const (
	nicCount        = 8
	nicDriver       = "dra.net" // DRANET
	nicBytesPerSec  = 20e9      // of an allocated NIC, in each direction
	nicFlapDuration = 10 * time.Second
	sysfsAge        = time.Second // of the files
)

// sysfs is the sysfs of a node with a NIC beside each GPU, mlx5_0 to mlx5_7,
// and the CPUs of a Grace superchip. It implements fs.FS.
type sysfs struct {
	kubelet *kubelet.Kubelet

	mu      sync.Mutex
	nics    [nicCount]nic    // guarded by mu
	byPod   map[string][]int // NICs of pods by namespace/name; guarded by mu
	files   fstest.MapFS     // at the time at; guarded by mu
	at      time.Time        // guarded by mu
	changed bool             // since at; guarded by mu
}

// nic is a NIC with one port.
type nic struct {
	bytes     float64
	downs     int
	down      bool
	downUntil time.Time // of the latest flap
}

func newSysfs(k *kubelet.Kubelet) *sysfs {
	return &sysfs{kubelet: k, byPod: map[string][]int{}, at: time.Now(), changed: true}
}

func (s *sysfs) Open(name string) (fs.File, error)          { return s.current().Open(name) }
func (s *sysfs) Stat(name string) (fs.FileInfo, error)      { return s.current().Stat(name) }
func (s *sysfs) Lstat(name string) (fs.FileInfo, error)     { return s.current().Lstat(name) }
func (s *sysfs) ReadLink(name string) (string, error)       { return s.current().ReadLink(name) }
func (s *sysfs) ReadDir(name string) ([]fs.DirEntry, error) { return s.current().ReadDir(name) }

// current returns the files of now.
func (s *sysfs) current() fstest.MapFS {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.changed && now.Sub(s.at) < sysfsAge {
		return s.files
	}
	busy := s.busyNICs()
	s.files = fstest.MapFS{}
	for i := range s.nics {
		n := &s.nics[i]
		isDown := n.down || now.Before(n.downUntil)
		if busy[i] && !isDown {
			n.bytes += now.Sub(s.at).Seconds() * nicBytesPerSec
		}
		s.addNIC(i, isDown)
	}
	for i, power := range []string{"Module", "Grace", "CPU", "SysIO"} {
		folder := fmt.Sprintf("class/hwmon/hwmon%d/", i)
		s.write(folder+"power1_oem_info", power+" Power Socket 0")
		s.write(folder+"power1_average", []string{"620000000", "180000000", "120000000", "25000000"}[i])
	}
	s.write("class/thermal/thermal_zone0/device/description", "Thermal Zone Skt0 TJMax")
	s.write("class/thermal/thermal_zone0/temp", "54500")
	s.at, s.changed = now, false
	return s.files
}

// busyNICs returns the NICs of running pods. mu is held.
func (s *sysfs) busyNICs() (busy [nicCount]bool) {
	for _, p := range s.kubelet.State().Pods {
		for _, i := range s.byPod[p.Namespace+"/"+p.Name] {
			busy[i] = busy[i] || p.Phase == "Running"
		}
	}
	return busy
}

// nicPCI returns the PCI address of a NIC.
func nicPCI(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x3a+i) }

// addNIC adds the files of a NIC. mu is held.
func (s *sysfs) addNIC(i int, isDown bool) {
	folder, n := fmt.Sprintf("class/infiniband/mlx5_%d/", i), &s.nics[i]
	state, physicalState := "4: ACTIVE", "5: LinkUp"
	if isDown {
		state, physicalState = "1: DOWN", "2: Polling"
	}
	s.files[folder+"device"] = &fstest.MapFile{
		Data: []byte("../../../devices/pci0000:00/" + nicPCI(i)), Mode: fs.ModeSymlink | 0o777,
	}
	folder += "ports/1/"
	words := strconv.Itoa(int(n.bytes / 4)) // both counters have a unit of 4 bytes
	for file, content := range map[string]string{
		"state": state, "phys_state": physicalState, "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)",
		"counters/port_rcv_data": words, "counters/port_xmit_data": words,
		"counters/link_downed": strconv.Itoa(n.downs), "counters/symbol_error": strconv.Itoa(3 * n.downs),
	} {
		s.write(folder+file, content)
	}
	for _, file := range []string{
		"counters/link_error_recovery", "counters/port_rcv_errors", "counters/local_link_integrity_errors",
		"counters/excessive_buffer_overrun_errors", "hw_counters/out_of_sequence", "hw_counters/local_ack_timeout_err",
	} {
		s.write(folder+file, "0")
	}
}

func (s *sysfs) write(file, content string) {
	s.files[file] = &fstest.MapFile{Data: []byte(content + "\n")}
}

// claim returns a claim on NICs for a pod.
func (s *sysfs) claim(pod kubelet.PodSpec, nics ...int) kubelet.ClaimSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPod[pod.Namespace+"/"+pod.Name] = nics
	c := kubelet.ClaimSpec{Name: pod.Name + "-nics"}
	for _, i := range nics {
		device := "pci-" + strings.NewReplacer(":", "-", ".", "-").Replace(nicPCI(i))
		c.Devices = append(c.Devices, kubelet.ClaimedDevice{Driver: nicDriver, Pool: "node", Device: device})
	}
	return c
}

// deletePod deletes a pod. Its NICs are idle from now on.
func (s *sysfs) deletePod(p kubelet.PodSpec) error {
	s.mu.Lock()
	delete(s.byPod, p.Namespace+"/"+p.Name)
	s.mu.Unlock()
	return s.kubelet.DeletePod(p)
}

// parseNICs parses "0,1".
func parseNICs(text string) (nics []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		i, err := strconv.Atoi(part)
		if err != nil || i < 0 || i >= nicCount {
			return nil, fmt.Errorf("%q: expected NICs from 0 to %d", text, nicCount-1)
		}
		nics = append(nics, i)
	}
	return nics, nil
}

// change flaps NICs, or makes their links go down or up.
func (s *sysfs) change(nics []int, action string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	for _, i := range nics {
		n := &s.nics[i]
		n.down = action == "down"
		switch action {
		case "flap":
			n.downs++
			n.downUntil = time.Now().Add(nicFlapDuration)
		case "down":
			n.downs++
		case "up":
			n.downUntil = time.Time{}
		default:
			return fmt.Errorf("%q: expected flap, down or up", action)
		}
	}
	return nil
}
