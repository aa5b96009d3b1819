package config

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/podgauge/podgauge/internal/device"
	"go.yaml.in/yaml/v3"
)

// SharingConfig configures the replicas of devices. At most one of the two
// methods has Resources.
type SharingConfig struct{ TimeSlicing, MPS SharingMethod }

// Active returns the method with Resources. Without Resources, no device is
// shared.
func (s SharingConfig) Active() SharingMethod {
	if len(s.MPS.Resources) > 0 {
		return s.MPS
	}
	return s.TimeSlicing
}

// SharingMethod has the shared resources of a method.
type SharingMethod struct {
	RenameByDefault            bool `yaml:"renameByDefault"` // adds ".shared" to the name
	FailRequestsGreaterThanOne bool `yaml:"failRequestsGreaterThanOne"`
	Resources                  []SharedResource
}

// SharedResource makes replicas of a resource's devices.
type SharedResource struct {
	Name     string
	Rename   string // resource of the replicas; empty: Name
	Devices  DeviceSelection
	Replicas ReplicaCount
}

// UnmarshalYAML reads a method. The values of absent keys stay.
func (s *SharingMethod) UnmarshalYAML(n *yaml.Node) error {
	type plain SharingMethod
	err := n.Decode((*plain)(s))
	if err == nil && len(s.Resources) == 0 {
		err = errors.New("no resources")
	}
	for i := range s.Resources {
		if r := &s.Resources[i]; err == nil && s.RenameByDefault && r.Rename == "" {
			r.Rename = r.Name + ".shared"
			err = CheckResourceName(r.Rename)
		}
	}
	return err
}

// UnmarshalYAML reads a resource of a list.
func (r *SharedResource) UnmarshalYAML(n *yaml.Node) error {
	type plain SharedResource
	r.Devices.All = true
	if err := n.Decode((*plain)(r)); err != nil {
		return err
	}
	if r.Name == "" || r.Replicas == 0 {
		return lineError(n, errors.New("expected a name and replicas"))
	}
	err := completeName(&r.Name)
	if err == nil && r.Rename != "" {
		err = completeName(&r.Rename)
	}
	return lineError(n, err)
}

// ReplicaCount is a number of replicas: 2 or more.
type ReplicaCount int

// UnmarshalYAML reads a number in the forms of YAML: 16, 0x10, 020, 1_000.
func (c *ReplicaCount) UnmarshalYAML(n *yaml.Node) error {
	count, err := strconv.ParseInt(n.Value, 0, 32)
	if err != nil || count < 2 || count > maxReplicas {
		return lineError(n, fmt.Errorf("replicas: %q: expected a whole number from 2 to %d", n.Value, maxReplicas))
	}
	*c = ReplicaCount(count)
	return nil
}

// DeviceSelection selects devices of a resource: All, the first Count, or the
// List. The zero value selects no device.
type DeviceSelection struct {
	All   bool
	Count int
	List  []DeviceSelector
}

// UnmarshalYAML reads "all", a count, or a list of devices.
func (d *DeviceSelection) UnmarshalYAML(n *yaml.Node) (err error) {
	*d = DeviceSelection{All: n.Value == "all"}
	if d.All {
		return nil
	}
	if d.Count, err = strconv.Atoi(n.Value); err == nil && d.Count > 0 {
		return nil
	}
	var values []string
	if n.Kind == yaml.SequenceNode {
		if err = n.Decode(&values); err != nil {
			return err
		}
	}
	if len(values) == 0 { // empty items have no effect
		return lineError(n, fmt.Errorf("devices: %q: expected all, a count, or a list of devices", n.Value))
	}
	return lineError(n, list(&d.List, ParseDeviceSelector).set(values))
}

// DeviceSharing is how a device is shared. The zero DeviceSharing is not
// shared.
type DeviceSharing struct {
	Resource        string // of the replicas; empty: the device's
	Replicas        int    // 0: a single id without a replica number
	OnePerContainer bool   // a container with several replicas is rejected
}

// maxReplicas is above the limit of any device: the kubelet reads lists of up
// to 4 MiB, and an id takes at least 62 bytes. The limit of a node depends on
// its devices (plugin/rules.go).
const maxReplicas = 1 << 16

// Precedence of an entry for a device: the closer the selection, the higher.
const (
	rankAll = iota + 1
	rankCount
	rankModel
	rankExact
)

// DeviceSharings returns how each device of a resource is shared. The entry of
// the highest rank counts; of equal ranks, the entry with the most replicas, as
// in NVIDIA's plugin.
func (s SharingMethod) DeviceSharings(resource string, devices []device.Device) []DeviceSharing {
	sharings := make([]DeviceSharing, len(devices))
	ranks := make([]int, len(devices))
	for _, r := range s.Resources {
		if r.Name != resource {
			continue
		}
		for i, rank := range r.Devices.ranks(devices) {
			if rank > ranks[i] || rank > 0 && rank == ranks[i] && int(r.Replicas) > sharings[i].Replicas {
				ranks[i], sharings[i] = rank, DeviceSharing{r.Rename, int(r.Replicas), s.FailRequestsGreaterThanOne}
			}
		}
	}
	return sharings
}

// ranks returns how closely each device is selected; 0: not at all. Devices are
// ordered by Device.Compare. The node may lack listed devices, because a file
// serves many nodes.
func (d DeviceSelection) ranks(devices []device.Device) []int {
	ranks := make([]int, len(devices))
	for i, candidate := range devices {
		switch {
		case d.All:
			ranks[i] = rankAll
		case i < d.Count:
			ranks[i] = rankCount
		}
		for _, selector := range d.List {
			if selector.Matches(candidate) && selector.isExact() {
				ranks[i] = rankExact
			} else if selector.Matches(candidate) {
				ranks[i] = max(ranks[i], rankModel)
			}
		}
	}
	return ranks
}
