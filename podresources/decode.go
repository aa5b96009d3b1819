package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// rawAnswer is what of a List is wanted: the holdings, which pods there are, and what
// containers have besides. A node has hundreds of containers and few devices, so the
// answer is read where it lies, and only what is new is made a string
// (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). The next answer is read
// into the same memory.
type rawAnswer struct {
	held  []device.Holding
	pods  []podName
	given given
	names wire.Names
}

type podName struct{ namespace, pod string }

func newAnswer() rawAnswer { return rawAnswer{names: wire.NewNames(mostInternedNames)} }

// mostInternedNames are kept from answer to answer.
const mostInternedNames = 4096

// The fields that are wanted, as they are tagged on the wire. CPUs come packed into one
// field, or each in one of its own.
const (
	listPods = 1<<3 | wire.Length

	podPodName    = 1<<3 | wire.Length
	podNamespace  = 2<<3 | wire.Length
	podContainers = 3<<3 | wire.Length
	podCPU        = 4<<3 | wire.Varint
	podCPUs       = 4<<3 | wire.Length
	podMemory     = 5<<3 | wire.Length

	containerName    = 1<<3 | wire.Length
	containerDevices = 2<<3 | wire.Length
	containerCPU     = 3<<3 | wire.Varint
	containerCPUs    = 3<<3 | wire.Length
	containerMemory  = 4<<3 | wire.Length
	containerClaims  = 5<<3 | wire.Length
)

// Read is a wire.Message's. After an error the rest of the answer is of no use.
func (a *rawAnswer) Read(b []byte) error {
	a.held, a.pods = a.held[:0], a.pods[:0]
	a.given.reset()
	err := wire.Fields(b, func(f wire.Field) error {
		if f.Tag == listPods {
			return a.pod(f.Bytes)
		}
		return nil
	})
	if foreign := &a.given.foreign; foreign.end() {
		a.given.dropForeign()
		a.held = slices.DeleteFunc(a.held, func(h device.Holding) bool { return foreign.drops(h.Resource, h.Offered) })
	}
	return err
}

// dropForeign drops the devices of resources that have too many.
func (g *given) dropForeign() {
	g.devices = slices.DeleteFunc(g.devices, func(d device.HeldDevice) bool { return g.foreign.drops(d.Resource, device.OfferedID(d.ID)) })
}

func (a *rawAnswer) pod(b []byte) error {
	// The names may come after the containers, and again: the last one counts.
	var pod, namespace []byte
	g := &a.given
	from := g.mark()
	err := wire.Fields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case podPodName:
			pod = f.Bytes
		case podNamespace:
			namespace = f.Bytes
		case podCPU, podCPUs:
			g.numbers, err = f.AppendNumbers(g.numbers)
		case podMemory:
			err = g.addMemory(f.Bytes, a.names)
		}
		return err
	})
	if err != nil {
		return err
	}
	name := podName{a.names.Of(namespace), a.names.Of(pod)}
	a.pods = append(a.pods, name)
	if g.mark() != from { // hardly any pod has something as a whole
		g.belongTo(device.Owner{Namespace: name.namespace, Pod: name.pod}, from)
	}
	return wire.Fields(b, func(f wire.Field) error {
		if f.Tag == podContainers {
			return a.container(f.Bytes, name)
		}
		return nil
	})
}

func (a *rawAnswer) container(b []byte, pod podName) error {
	var container []byte
	g := &a.given
	from, heldFrom := g.mark(), len(a.held)
	err := wire.Fields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case containerName:
			container = f.Bytes
		case containerDevices:
			err = a.devices(f.Bytes)
		case containerCPU, containerCPUs:
			g.numbers, err = f.AppendNumbers(g.numbers)
		case containerMemory:
			err = g.addMemory(f.Bytes, a.names)
		case containerClaims:
			err = g.addClaims(f.Bytes, a.names)
		}
		return err
	})
	if g.mark() == from { // most containers have nothing, and no string is made of them
		return err
	}
	owner := device.Owner{Namespace: pod.namespace, Pod: pod.pod, Container: a.names.Of(container)}
	for i := range a.held[heldFrom:] {
		a.held[heldFrom+i].Owner = owner
	}
	g.belongTo(owner, from)
	return err
}

// devices appends a row for each id; whose they are is for the caller to say.
func (a *rawAnswer) devices(b []byte) error {
	from := len(a.given.devices)
	err := a.given.addDevices(b, a.names)
	for _, d := range a.given.devices[from:] {
		a.held = append(a.held, device.Holding{Resource: d.Resource, Offered: device.OfferedID(d.ID)})
	}
	return err
}
