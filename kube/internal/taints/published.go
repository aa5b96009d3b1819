package taints

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/dra"
	"github.com/podgauge/podgauge/internal/web/api"
	resource "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// maxPublishedAge limits the lists of a node whose health changes often.
	maxPublishedAge = 10 * time.Second
	// publishedInterval is the interval of a look at the published devices of a
	// node with taints: a driver may publish them under other names.
	publishedInterval = time.Minute
)

// published are the devices in a node's ResourceSlices.
type published struct {
	at      time.Time
	devices []publishedDevice
}

// publishedDevice is a device in a ResourceSlice.
type publishedDevice struct {
	driver, pool, name string
	uuid, parent       string // attributes; of a MIG device, parent is its GPU. Empty if missing
}

// publications are the published devices of the nodes.
type publications struct {
	client kubernetes.Interface
	nodes  sync.Map // published, by node
}

// devices returns the devices that DRA drivers publish for a node.
// Devices on the network, which have no node, are not among them.
func (a *publications) devices(ctx context.Context, node string) ([]publishedDevice, error) {
	if p, ok := a.nodes.Load(node); ok && time.Since(p.(published).at) < maxPublishedAge {
		return p.(published).devices, nil
	}
	list, err := a.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resource.ResourceSliceSelectorNodeName + "=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("list resource slices of %s: %w", node, err)
	}
	p := published{at: time.Now()}
	for _, slice := range list.Items {
		// A rule names a pool and no node, so a node could have devices of others
		// tainted. Pools of a node have its name.
		if pool := slice.Spec.Pool.Name; pool != node && !strings.HasPrefix(pool, node+"/") {
			continue
		}
		for _, d := range slice.Spec.Devices {
			p.devices = append(p.devices, publishedDevice{
				driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name, name: d.Name,
				uuid: attribute(&slice, &d, "uuid"), parent: attribute(&slice, &d, "parentUUID"),
			})
		}
	}
	a.nodes.Store(node, p)
	return p.devices, nil
}

// attribute returns an attribute that is a text. The driver is the domain of
// names without one.
func attribute(slice *resource.ResourceSlice, d *resource.Device, name string) string {
	for _, name := range []string{name, slice.Spec.Driver + "/" + name} {
		if value := d.Attributes[resource.QualifiedName(name)].StringValue; value != nil {
			return *value
		}
	}
	return ""
}

// is reports whether a published device is the device, or a MIG device of the
// GPU. Possible MIG devices, which the driver creates for a claim, have no UUID
// but their GPU's, and a name.
func (p *publishedDevice) is(d *api.DeviceJSON) bool {
	wholeGPU := string(d.ID) == string(d.GPU)
	switch {
	case p.uuid == string(d.ID), wholeGPU && p.parent == string(d.GPU):
		return true
	case p.uuid != "" || p.driver != dra.Driver || d.Minor == nil:
		return false
	}
	return dra.HasName(p.name, &device.Status{Gone: d.Gone, Device: device.Device{
		ID: d.ID, GPU: d.GPU, MIGEnabled: d.MIG, Minor: *d.Minor, Placement: d.Placement,
	}})
}
