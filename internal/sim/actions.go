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

// podStartTimeout is how long a scripted pod may take to start: one that waits for what does not
// come is not to hold up the rest.
const podStartTimeout = 5 * time.Second

// unlimitedArgs is no bound to a deed's arguments.
const unlimitedArgs = 1 << 10

// scriptAction is something that can happen on a node.
type scriptAction struct {
	usage            string // its arguments, for who has got them wrong
	minArgs, maxArgs int    // how many
	run              func(ctx context.Context, n *VirtualNode, args []string) error
}

// scriptActions are all of them, by name.
var scriptActions = map[string]scriptAction{
	"pod":    {"NAMESPACE/NAME CONTAINER=COUNT[,RESOURCE]… [idle]", 2, unlimitedArgs, runPod},
	"fail":   {"NAMESPACE/NAME", 1, 1, endPod(kubelet.ContainerExit{Code: 1})},
	"finish": {"NAMESPACE/NAME", 1, 1, endPod(kubelet.ContainerExit{})},
	"delete": {"NAMESPACE/NAME", 1, 1, deletePod},

	"busy":   {"DEVICE SHARE", 2, 2, onDeviceNumber(func(m *Machine, id device.ID, v float64) { m.SetUtilization(id, v) })},
	"xid":    {"DEVICE CODE [TIMES]", 2, 3, reportXids},
	"fault":  {"DEVICE WORD", 2, 2, onDevice(func(m *Machine, id device.ID, args []string) { m.Fail(id, args[0]) })},
	"reset":  {"DEVICE", 1, 1, onDevice(func(m *Machine, id device.ID, _ []string) { m.ResetGPU(id) })},
	"remove": {"DEVICE", 1, 1, onDevice(func(m *Machine, id device.ID, _ []string) { m.RemoveGPU(id) })},
	"stall":  {"DEVICE", 1, 1, onDevice(func(m *Machine, id device.ID, _ []string) { m.HangGPU(id) })},
	"set":    {"DEVICE ROW VALUE", 3, 3, onDeviceRow((*Machine).SetValue)},
	"rise":   {"DEVICE ROW PER_SECOND", 3, 3, onDeviceRow((*Machine).SetRate)},

	"partition": {"DEVICE PROFILE…", 2, unlimitedArgs, partitionGPU},
	"whole":     {"DEVICE", 1, 1, onDevice(func(m *Machine, id device.ID, _ []string) { m.Unpartition(device.GPU(id)) })},

	"wedge":   {"nothing", 0, 0, onMachine((*Machine).HangAll)},
	"release": {"nothing", 0, 0, onMachine((*Machine).ReleaseHangs)},
	"unload":  {"nothing", 0, 0, onMachine(func(m *Machine) { m.SetDriverError(errors.New("the driver was unloaded")) })},
	"load":    {"nothing", 0, 0, onMachine(func(m *Machine) { m.SetDriverError(nil) })},

	"kubelet": {"well, silent, refuses or restarts", 1, 1, setKubeletBehavior},
}

// RunScript has happen what the script says, until ctx is done.
func (n *VirtualNode) RunScript(ctx context.Context, s *Script) error {
	if err := n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable > 0 }); err != nil {
		return nil //nolint:nilerr // ctx is done
	}
	begun := time.Now()
	for _, step := range s.Steps {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(begun.Add(step.At))):
		}
		n.log.Info("simulated: "+step.Action, "args", strings.Join(step.Args, " "))
		if err := scriptActions[step.Action].run(ctx, n, step.Args); err != nil && ctx.Err() == nil {
			return fmt.Errorf("play the script: %s: %w", step, err)
		}
	}
	<-ctx.Done()
	return nil
}

// parsePod has a pod's namespace and name.
func parsePod(text string) (kubelet.PodSpec, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return kubelet.PodSpec{}, fmt.Errorf("%q: want NAMESPACE/NAME", text)
	}
	return kubelet.PodSpec{Namespace: namespace, Name: name, GracePeriod: podGracePeriod}, nil
}

func runPod(ctx context.Context, n *VirtualNode, args []string) error {
	p, err := parsePod(args[0])
	if err != nil {
		return err
	}
	for _, arg := range args[1:] {
		if arg == "idle" {
			n.ProcessTable.markIdle(p.Namespace, p.Name)
			continue
		}
		c, err := parseContainer(arg)
		if err != nil {
			return err
		}
		p.Containers = append(p.Containers, c)
	}
	ctx, cancel := context.WithTimeout(ctx, podStartTimeout)
	defer cancel()
	if err := n.Kubelet.RunPod(ctx, p); err != nil { // which may be the point of it
		n.log.Info("simulated: a pod does not run", "pod", p.Name, "err", err)
	}
	return nil
}

// parseContainer reads "main=2" and "main=1,nvidia.com/mig-1g.10gb".
func parseContainer(text string) (kubelet.ContainerSpec, error) {
	name, limit, _ := strings.Cut(text, "=")
	count, resourceName, ok := strings.Cut(limit, ",")
	if !ok {
		resourceName = gpuResource
	}
	wanted, err := strconv.Atoi(count)
	if err != nil || name == "" || resourceName == "" {
		return kubelet.ContainerSpec{}, fmt.Errorf("%q: want CONTAINER=COUNT[,RESOURCE]", text)
	}
	return kubelet.ContainerSpec{Name: name, Limits: map[string]int{resourceName: wanted}}, nil
}

func endPod(exit kubelet.ContainerExit) func(context.Context, *VirtualNode, []string) error {
	return func(_ context.Context, n *VirtualNode, args []string) error {
		p, err := parsePod(args[0])
		if err != nil {
			return err
		}
		status, err := n.Kubelet.Pod(p)
		if err != nil {
			return err
		}
		end := kubelet.PodEnd{Exits: map[string]kubelet.ContainerExit{}}
		for _, c := range status.Containers {
			end.Exits[c.Name] = exit
		}
		return n.Kubelet.EndPodWith(p, end)
	}
}

func deletePod(_ context.Context, n *VirtualNode, args []string) error {
	p, err := parsePod(args[0])
	if err != nil {
		return err
	}
	return n.Kubelet.DeletePod(p)
}

// findDevice finds the device that a script means.
func (n *VirtualNode) findDevice(text string) (device.ID, error) {
	if strings.Contains(text, "/") {
		return n.deviceOfPod(text)
	}
	of, migIndex, isMIG := strings.Cut(text, ".")
	gpu, err := strconv.Atoi(of)
	gpus := n.Machine.GPUs()
	if err != nil || gpu < 0 || gpu >= len(gpus) {
		return "", fmt.Errorf("%q is no device", text)
	}
	if !isMIG {
		return device.ID(gpus[gpu]), nil
	}
	return n.Machine.findMIGDevice(gpus[gpu], migIndex)
}

// deviceOfPod is what a pod holds first, or held when the script named it before.
func (n *VirtualNode) deviceOfPod(text string) (device.ID, error) {
	p, err := parsePod(text)
	if err != nil {
		return "", err
	}
	status, err := n.Kubelet.Pod(p)
	if err != nil && n.deviceByPod[text] == "" {
		return "", err
	}
	for _, c := range status.Containers {
		for _, d := range c.Devices {
			n.deviceByPod[text] = device.AdvertisedID(d.ID).Device()
			return n.deviceByPod[text], nil
		}
	}
	if id, ok := n.deviceByPod[text]; ok {
		return id, nil
	}
	return "", fmt.Errorf("%s holds no device", text)
}

func onMachine(do func(*Machine)) func(context.Context, *VirtualNode, []string) error {
	return func(_ context.Context, n *VirtualNode, _ []string) error {
		do(n.Machine)
		return nil
	}
}

func onDevice(do func(m *Machine, id device.ID, args []string)) func(context.Context, *VirtualNode, []string) error {
	return func(_ context.Context, n *VirtualNode, args []string) error {
		id, err := n.findDevice(args[0])
		if err == nil {
			do(n.Machine, id, args[1:])
		}
		return err
	}
}

func onDeviceNumber(do func(*Machine, device.ID, float64)) func(context.Context, *VirtualNode, []string) error {
	return func(_ context.Context, n *VirtualNode, args []string) error {
		id, err := n.findDevice(args[0])
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

func onDeviceRow(do func(m *Machine, id device.ID, row string, v float64)) func(context.Context, *VirtualNode, []string) error {
	return func(ctx context.Context, n *VirtualNode, args []string) error {
		if !n.Machine.hasRow(args[1]) {
			return fmt.Errorf("there is no row %s", args[1])
		}
		return onDeviceNumber(func(m *Machine, id device.ID, v float64) { do(m, id, args[1], v) })(ctx, n, []string{args[0], args[2]})
	}
}

func partitionGPU(_ context.Context, n *VirtualNode, args []string) error {
	id, err := n.findDevice(args[0])
	if err == nil {
		err = n.Machine.checkPartition(device.GPU(id), args[1:])
	}
	if err == nil {
		n.Machine.Partition(device.GPU(id), args[1:]...)
	}
	return err
}

func reportXids(_ context.Context, n *VirtualNode, args []string) error {
	id, err := n.findDevice(args[0])
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

func setKubeletBehavior(ctx context.Context, n *VirtualNode, args []string) error {
	switch args[0] {
	case "well":
		n.Kubelet.SetFaults(kubelet.Faults{})
	case "silent":
		err := errors.New("it is not to be asked")
		n.Kubelet.SetFaults(kubelet.Faults{ListErr: err, GetErr: err})
	case "refuses":
		n.Kubelet.SetFaults(kubelet.Faults{RegisterErr: errors.New("it takes no device plugin")})
		for name := range n.Kubelet.State().Resources {
			n.Kubelet.CutStreams(name)
		}
	case "restarts":
		ctx, cancel := context.WithTimeout(ctx, podStartTimeout)
		defer cancel()
		return n.Kubelet.Restart(ctx, kubelet.RestartOptions{})
	default:
		return fmt.Errorf("%q is nothing that a kubelet does", args[0])
	}
	return nil
}
