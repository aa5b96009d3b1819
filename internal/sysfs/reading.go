package sysfs

import (
	"encoding/base32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// Reading is the state of all RDMA ports and CPU sensors at one time. It is
// immutable once published.
type Reading struct {
	At      time.Time // of the begin
	Ports   []Port
	Sensors []Sensor
	devices map[string][]string // RDMA devices by each of their names
	names   []string            // of the RDMA devices
}

// Port is a port of an RDMA device.
type Port struct {
	Device, Port string // "mlx5_0", "1"
	LinkLayer    string // "InfiniBand" or "Ethernet"; empty: not read
	PCI          string // address; otherwise the name of the parent: mlx5_core.sf.4
	Samples      []device.Sample
}

// Sensor is a value of a CPU socket.
type Sensor struct {
	Metric         string
	Socket, Sensor string // "0", "grace"
	Value          float64
}

// addNames adds the names by which device plugins and DRA drivers know an RDMA
// device:
//
//   - PCI address, or name of a scalable function, mlx5_core.sf.4:
//     sriov-network-device-plugin (pkg/devices/host.go)
//   - 0000-3b-00-0: dra-driver-sriov (pkg/devicestate/discovery.go)
//   - pci-0000-3b-00-0, network interface, or net- and the interface in Base32:
//     DRANET (pkg/names/names.go)
//   - name of the RDMA device: AWS' EFA plugin, by its log
func (r *Reading) addNames(name, pci string, interfaces []string) {
	names := append([]string{name}, interfaces...)
	for _, i := range interfaces {
		encoded := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(i))
		names = append(names, "net-"+strings.ToLower(encoded))
	}
	if pci != "" {
		dashed := strings.NewReplacer(":", "-", ".", "-").Replace(pci)
		names = append(names, pci, dashed, "pci-"+dashed)
	}
	for _, n := range names {
		if !slices.Contains(r.devices[n], name) {
			r.devices[n] = append(r.devices[n], name)
		}
	}
	r.names = append(r.names, name)
}

// sharedPrefix begins the resources of k8s-rdma-shared-dev-plugin, whose ids
// are numbers (pkg/resources/server.go).
const sharedPrefix = "rdma/"

// Allocation is an RDMA device that a container has.
type Allocation struct {
	Device, Resource, ID string
	Owner                allocation.Owner
}

// Allocations returns the RDMA devices among the resources of containers. An id
// without an RDMA device is left out. The number of a shared device tells which
// one only on a node with a single RDMA device.
func (r *Reading) Allocations(s *allocation.ResourceSet) (all []Allocation) {
	found := map[Allocation]bool{} // the kubelet may list a row twice
	add := func(names []string, a Allocation) {
		for _, a.Device = range names {
			if !found[a] {
				found[a] = true
				all = append(all, a)
			}
		}
	}
	for _, d := range s.Devices {
		names := r.devices[d.ID]
		if _, err := strconv.ParseUint(d.ID, 10, 32); err == nil && strings.HasPrefix(d.Resource, sharedPrefix) {
			names = nil
			if len(r.names) == 1 {
				names = r.names
			}
		}
		add(names, Allocation{Resource: d.Resource, ID: d.ID, Owner: d.Owner})
	}
	for _, c := range s.Claims {
		names := r.devices[c.Device]
		for _, cdi := range c.CDI { // vendor.com/class=name
			if _, name, _ := strings.Cut(cdi, "="); len(names) == 0 {
				names = r.devices[name]
			}
		}
		add(names, Allocation{Resource: c.Driver, ID: c.Device, Owner: c.Owner})
	}
	return all
}
