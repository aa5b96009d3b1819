package podresources

import (
	"github.com/podgauge/podgauge/device"
	"google.golang.org/protobuf/encoding/protowire"
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
	names interner
}

type podName struct{ namespace, pod string }

func newAnswer() rawAnswer { return rawAnswer{names: interner{}} }

// The numbers of the fields that are wanted.
const (
	listPods         = 1
	podPodName       = 1
	podNamespace     = 2
	podContainers    = 3
	podCPUs          = 4
	podMemory        = 5
	containerName    = 1
	containerDevices = 2
	containerCPUs    = 3
	containerMemory  = 4
	containerClaims  = 5
)

func (a *rawAnswer) decode(b []byte) error {
	a.held, a.pods = a.held[:0], a.pods[:0]
	a.given.reset()
	a.names.trim()
	return fields(b, func(number protowire.Number, pod []byte) error {
		if number != listPods {
			return nil
		}
		return a.pod(pod)
	})
}

func (a *rawAnswer) pod(b []byte) error {
	// The names may come after the containers, and again: the last one counts.
	var pod, namespace []byte
	g := &a.given
	from := g.mark()
	err := walk(b, func(number protowire.Number, value []byte) (err error) {
		switch number {
		case podPodName:
			pod = value
		case podNamespace:
			namespace = value
		case podCPUs:
			g.numbers, err = appendPacked(g.numbers, value)
		case podMemory:
			err = g.addMemory(value, a.names)
		}
		return err
	}, func(number protowire.Number, value uint64) {
		if number == podCPUs {
			g.numbers = append(g.numbers, int64(value))
		}
	})
	if err != nil {
		return err
	}
	name := podName{a.names.of(namespace), a.names.of(pod)}
	a.pods = append(a.pods, name)
	if g.mark() != from { // hardly any pod has something as a whole
		g.belongTo(device.Owner{Namespace: name.namespace, Pod: name.pod}, from)
	}
	return fields(b, func(number protowire.Number, container []byte) error {
		if number != podContainers {
			return nil
		}
		return a.container(container, name)
	})
}

func (a *rawAnswer) container(b []byte, pod podName) error {
	var container []byte
	g := &a.given
	from, heldFrom := g.mark(), len(a.held)
	err := walk(b, func(number protowire.Number, value []byte) (err error) {
		switch number {
		case containerName:
			container = value
		case containerDevices:
			err = a.devices(value)
		case containerCPUs:
			g.numbers, err = appendPacked(g.numbers, value)
		case containerMemory:
			err = g.addMemory(value, a.names)
		case containerClaims:
			err = g.addClaims(value, a.names)
		}
		return err
	}, func(number protowire.Number, value uint64) {
		if number == containerCPUs {
			g.numbers = append(g.numbers, int64(value))
		}
	})
	if g.mark() == from { // most containers have nothing, and no string is made of them
		return err
	}
	owner := device.Owner{Namespace: pod.namespace, Pod: pod.pod, Container: a.names.of(container)}
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
