package sim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// startsWithin is how long a scripted pod may take to start: one that waits for what does not
// come is not to hold up the rest.
const startsWithin = 5 * time.Second

// many is no bound to a deed's arguments.
const many = 1 << 10

// deed is something that can happen on a node.
type deed struct {
	takes       string // its arguments, for who has got them wrong
	least, most int    // how many
	do          func(ctx context.Context, n *Node, args []string) error
}

// deeds are all of them, by name.
var deeds = map[string]deed{
	"pod":    {"NAMESPACE/NAME CONTAINER=COUNT[,RESOURCE]… [idle]", 2, many, runPod},
	"fail":   {"NAMESPACE/NAME", 1, 1, endPod(kubelet.Exit{Code: 1})},
	"finish": {"NAMESPACE/NAME", 1, 1, endPod(kubelet.Exit{})},
	"delete": {"NAMESPACE/NAME", 1, 1, deletePod},

	"busy":   {"DEVICE SHARE", 2, 2, withNumber(func(m *Machine, id device.ID, v float64) { m.Busy(id, v) })},
	"xid":    {"DEVICE CODE [TIMES]", 2, 3, reportXids},
	"fault":  {"DEVICE WORD", 2, 2, withDevice(func(m *Machine, id device.ID, args []string) { m.Fail(id, args[0]) })},
	"reset":  {"DEVICE", 1, 1, withDevice(func(m *Machine, id device.ID, _ []string) { m.Recover(id) })},
	"remove": {"DEVICE", 1, 1, withDevice(func(m *Machine, id device.ID, _ []string) { m.Remove(id) })},
	"stall":  {"DEVICE", 1, 1, withDevice(func(m *Machine, id device.ID, _ []string) { m.Stall(id) })},
	"set":    {"DEVICE ROW VALUE", 3, 3, withRow((*Machine).Set)},
	"rise":   {"DEVICE ROW PER_SECOND", 3, 3, withRow((*Machine).Rise)},

	"partition": {"DEVICE PROFILE…", 2, many, partition},
	"whole":     {"DEVICE", 1, 1, withDevice(func(m *Machine, id device.ID, _ []string) { m.Unpartition(device.GPU(id)) })},

	"wedge":   {"nothing", 0, 0, withMachine((*Machine).Wedge)},
	"release": {"nothing", 0, 0, withMachine((*Machine).Release)},
	"unload":  {"nothing", 0, 0, withMachine(func(m *Machine) { m.Unload(errors.New("the driver was unloaded")) })},
	"load":    {"nothing", 0, 0, withMachine(func(m *Machine) { m.Unload(nil) })},

	"kubelet": {"well, silent, refuses or restarts", 1, 1, kubeletDoes},
}

// Play has happen what the script says, until ctx is done.
func (n *Node) Play(ctx context.Context, s *Script) error {
	if err := n.Kubelet.Wait(ctx, func(s kubelet.State) bool { return s.Resources[resource].Allocatable > 0 }); err != nil {
		return nil //nolint:nilerr // ctx is done
	}
	begun := time.Now()
	for _, step := range s.Steps {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(begun.Add(step.At))):
		}
		n.log.Info("simulated: "+step.What, "args", strings.Join(step.Args, " "))
		if err := deeds[step.What].do(ctx, n, step.Args); err != nil && ctx.Err() == nil {
			return fmt.Errorf("play the script: %s: %w", step, err)
		}
	}
	<-ctx.Done()
	return nil
}

// podNamed has a pod's namespace and name.
func podNamed(text string) (kubelet.Pod, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return kubelet.Pod{}, fmt.Errorf("%q: want NAMESPACE/NAME", text)
	}
	return kubelet.Pod{Namespace: namespace, Name: name, Grace: graceOfPods}, nil
}

func runPod(ctx context.Context, n *Node, args []string) error {
	p, err := podNamed(args[0])
	if err != nil {
		return err
	}
	for _, arg := range args[1:] {
		if arg == "idle" {
			n.Crowd.rest(p.Namespace, p.Name)
			continue
		}
		c, err := containerOf(arg)
		if err != nil {
			return err
		}
		p.Containers = append(p.Containers, c)
	}
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	if err := n.Kubelet.RunPod(ctx, p); err != nil { // which may be the point of it
		n.log.Info("simulated: a pod does not run", "pod", p.Name, "err", err)
	}
	return nil
}

// containerOf reads "main=2" and "main=1,nvidia.com/mig-1g.10gb".
func containerOf(text string) (kubelet.Container, error) {
	name, limit, _ := strings.Cut(text, "=")
	count, of, said := strings.Cut(limit, ",")
	if !said {
		of = resource
	}
	wanted, err := strconv.Atoi(count)
	if err != nil || name == "" || of == "" {
		return kubelet.Container{}, fmt.Errorf("%q: want CONTAINER=COUNT[,RESOURCE]", text)
	}
	return kubelet.Container{Name: name, Limits: map[string]int{of: wanted}}, nil
}

func endPod(exit kubelet.Exit) func(context.Context, *Node, []string) error {
	return func(_ context.Context, n *Node, args []string) error {
		p, err := podNamed(args[0])
		if err != nil {
			return err
		}
		status, err := n.Kubelet.Pod(p)
		if err != nil {
			return err
		}
		end := kubelet.End{Exits: map[string]kubelet.Exit{}}
		for _, c := range status.Containers {
			end.Exits[c.Name] = exit
		}
		return n.Kubelet.EndPodAs(p, end)
	}
}

func deletePod(_ context.Context, n *Node, args []string) error {
	p, err := podNamed(args[0])
	if err != nil {
		return err
	}
	return n.Kubelet.DeletePod(p)
}

// deviceNamed finds the device that a script means.
func (n *Node) deviceNamed(text string) (device.ID, error) {
	if strings.Contains(text, "/") {
		return n.heldBy(text)
	}
	of, part, sliced := strings.Cut(text, ".")
	gpu, err := strconv.Atoi(of)
	gpus := n.Machine.GPUs()
	if err != nil || gpu < 0 || gpu >= len(gpus) {
		return "", fmt.Errorf("%q is no device", text)
	}
	if !sliced {
		return device.ID(gpus[gpu]), nil
	}
	return n.Machine.sliceNamed(gpus[gpu], part)
}

// heldBy is what a pod holds first, or held when the script named it before.
func (n *Node) heldBy(text string) (device.ID, error) {
	p, err := podNamed(text)
	if err != nil {
		return "", err
	}
	status, err := n.Kubelet.Pod(p)
	if err != nil && n.held[text] == "" {
		return "", err
	}
	for _, c := range status.Containers {
		for _, d := range c.Devices {
			n.held[text] = device.OfferedID(d.ID).Device()
			return n.held[text], nil
		}
	}
	if id, ok := n.held[text]; ok {
		return id, nil
	}
	return "", fmt.Errorf("%s holds no device", text)
}

func withMachine(do func(*Machine)) func(context.Context, *Node, []string) error {
	return func(_ context.Context, n *Node, _ []string) error {
		do(n.Machine)
		return nil
	}
}

func withDevice(do func(m *Machine, id device.ID, args []string)) func(context.Context, *Node, []string) error {
	return func(_ context.Context, n *Node, args []string) error {
		id, err := n.deviceNamed(args[0])
		if err == nil {
			do(n.Machine, id, args[1:])
		}
		return err
	}
}

func withNumber(do func(*Machine, device.ID, float64)) func(context.Context, *Node, []string) error {
	return func(_ context.Context, n *Node, args []string) error {
		id, err := n.deviceNamed(args[0])
		if err != nil {
			return err
		}
		value, err := strconv.ParseFloat(args[1], 64)
		if err == nil {
			do(n.Machine, id, value)
		}
		return err
	}
}

func withRow(do func(m *Machine, id device.ID, row string, v float64)) func(context.Context, *Node, []string) error {
	return func(ctx context.Context, n *Node, args []string) error {
		if !n.Machine.hasRow(args[1]) {
			return fmt.Errorf("there is no row %s", args[1])
		}
		return withNumber(func(m *Machine, id device.ID, v float64) { do(m, id, args[1], v) })(ctx, n, []string{args[0], args[2]})
	}
}

func partition(_ context.Context, n *Node, args []string) error {
	id, err := n.deviceNamed(args[0])
	if err == nil {
		err = n.Machine.partitionable(device.GPU(id), args[1:])
	}
	if err == nil {
		n.Machine.Partition(device.GPU(id), args[1:]...)
	}
	return err
}

func reportXids(_ context.Context, n *Node, args []string) error {
	id, err := n.deviceNamed(args[0])
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(args[1], 10, 64); err != nil {
		return err
	}
	times := 1
	if len(args) > 2 {
		if times, err = strconv.Atoi(args[2]); err != nil {
			return err
		}
	}
	for range times {
		n.Machine.Fail(id, "xid "+args[1])
	}
	return nil
}

func kubeletDoes(ctx context.Context, n *Node, args []string) error {
	switch args[0] {
	case "well":
		n.Kubelet.Trouble(kubelet.Trouble{})
	case "silent":
		why := errors.New("it is not to be asked")
		n.Kubelet.Trouble(kubelet.Trouble{List: why, Get: why})
	case "refuses":
		n.Kubelet.Trouble(kubelet.Trouble{Register: errors.New("it takes no device plugin")})
		for name := range n.Kubelet.State().Resources {
			n.Kubelet.CutStreams(name)
		}
	case "restarts":
		ctx, cancel := context.WithTimeout(ctx, startsWithin)
		defer cancel()
		return n.Kubelet.Restart(ctx, kubelet.RestartOptions{})
	default:
		return fmt.Errorf("%q is nothing that a kubelet does", args[0])
	}
	return nil
}
