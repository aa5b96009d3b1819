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

// podStartTimeout bounds the start of a pod: a pending pod must not delay the
// script.
const podStartTimeout = 5 * time.Second

const unlimitedArgs = 1 << 10

// scriptAction is an action of a script.
type scriptAction struct {
	usage            string // of the arguments
	minArgs, maxArgs int
	run              actionFunc
}

type actionFunc func(ctx context.Context, n *VirtualNode, args []string) error

// scriptActions are all actions by name.
var scriptActions = map[string]scriptAction{
	"pod":    {"NAMESPACE/NAME CONTAINER=COUNT[,RESOURCE]… [rdma=NIC,…] [idle]", 2, unlimitedArgs, runPod},
	"fail":   {"NAMESPACE/NAME", 1, 1, onPod(failPod)},
	"finish": {"NAMESPACE/NAME", 1, 1, onPod((*kubelet.Kubelet).EndPod)},
	"delete": {"NAMESPACE/NAME", 1, 1, deletePod},

	"set":       {"DEVICE ROW VALUE", 3, 3, onDevice(setRow((*Machine).SetValue))},
	"rise":      {"DEVICE ROW PER_SECOND", 3, 3, onDevice(setRow((*Machine).SetRate))},
	"work":      {"DEVICE KIND", 2, 2, setWork},
	"slow":      {"DEVICE FRACTION", 2, 2, onDevice(slowGPU)},
	"xid":       {"DEVICE CODE [TIMES]", 2, 3, onDevice(reportXids)},
	"reset":     {"DEVICE", 1, 1, onDevice(withoutArgs((*Machine).ResetGPU))},
	"stall":     {"DEVICE", 1, 1, onDevice(withoutArgs((*Machine).HangGPU))},
	"partition": {"DEVICE PROFILE…", 2, unlimitedArgs, onDevice(partitionGPU)},
	"process":   {"DEVICE BYTES", 2, 2, startUnattributed},

	"sxid":   {"NVSWITCH MESSAGE", 2, unlimitedArgs, reportSwitchError},
	"fabric": {"DEVICE and joined, waiting or failed", 2, 2, onDevice(setFabric)},

	"wedge":   {"no argument", 0, 0, onMachine((*Machine).HangAll)},
	"release": {"no argument", 0, 0, onMachine((*Machine).ReleaseHangs)},
	"unload": {
		"no argument",
		0, 0, onMachine(func(m *Machine) { m.SetDriverError(errors.New("the driver was unloaded")) }),
	},
	"load": {"no argument", 0, 0, onMachine(func(m *Machine) { m.SetDriverError(nil) })},

	"rdma": {"NIC,… flap, down or up", 2, 2, changeNICs},

	"kubelet": {"well, silent, refuses or restarts", 1, 1, setKubeletBehavior},
}

// RunOn runs an action about a machine, at once.
func (s Step) RunOn(ctx context.Context, m *Machine) error {
	if s.Action == "kubelet" || strings.Contains(strings.Join(s.Args[:min(1, len(s.Args))], ""), "/") {
		return errors.New("the kubelet and the pods of this node are not simulated")
	}
	return scriptActions[s.Action].run(ctx, &VirtualNode{Machine: m}, s.Args)
}

func parsePod(text string) (kubelet.PodSpec, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return kubelet.PodSpec{}, fmt.Errorf("%q: expected NAMESPACE/NAME", text)
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
		if nics, ok := strings.CutPrefix(arg, "rdma="); ok && len(p.Containers) > 0 {
			parsed, err := parseNICs(nics)
			if err != nil {
				return err
			}
			last := &p.Containers[len(p.Containers)-1]
			last.Claims = append(last.Claims, n.sysfs.claim(p, parsed...))
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
	if err := n.Kubelet.RunPod(ctx, p); err != nil { // possibly on purpose
		n.log.Info("simulated: pod does not run", "pod", p.Name, "err", err)
	}
	return nil
}

// parseContainer parses "main=2" and "main=1,nvidia.com/mig-1g.10gb".
func parseContainer(text string) (kubelet.ContainerSpec, error) {
	name, limit, _ := strings.Cut(text, "=")
	count, resource, ok := strings.Cut(limit, ",")
	if !ok {
		resource = gpuResource
	}
	wanted, err := strconv.Atoi(count)
	if err != nil || name == "" || resource == "" {
		return kubelet.ContainerSpec{}, fmt.Errorf("%q: expected CONTAINER=COUNT[,RESOURCE]", text)
	}
	return kubelet.ContainerSpec{Name: name, Limits: map[string]int{resource: wanted}}, nil
}

func onPod(do func(k *kubelet.Kubelet, p kubelet.PodSpec) error) actionFunc {
	return func(_ context.Context, n *VirtualNode, args []string) error {
		p, err := parsePod(args[0])
		if err != nil {
			return err
		}
		return do(n.Kubelet, p)
	}
}

func deletePod(_ context.Context, n *VirtualNode, args []string) error {
	p, err := parsePod(args[0])
	if err != nil {
		return err
	}
	return n.sysfs.deletePod(p)
}

// failPod ends all containers with status 1.
func failPod(k *kubelet.Kubelet, p kubelet.PodSpec) error {
	status, err := k.Pod(p)
	if err != nil {
		return err
	}
	end := kubelet.PodEnd{Exits: map[string]kubelet.ContainerExit{}}
	for _, c := range status.Containers {
		end.Exits[c.Name] = kubelet.ContainerExit{Code: 1}
	}
	return k.EndPodWith(p, end)
}

// findDevice returns the device for a name in a script.
func (n *VirtualNode) findDevice(text string) (device.ID, error) {
	if strings.Contains(text, "/") {
		return n.deviceOfPod(text)
	}
	index, migIndex, isMIG := strings.Cut(text, ".")
	gpu, err := strconv.Atoi(index)
	gpus := n.Machine.GPUs()
	switch {
	case err != nil || gpu < 0 || gpu >= len(gpus):
		return "", fmt.Errorf("%q is not a device", text)
	case isMIG:
		return n.Machine.migDeviceAt(gpus[gpu], migIndex)
	}
	return device.ID(gpus[gpu]), nil
}

// deviceOfPod returns the first device of a pod, or the device of the time when
// the script last named the pod.
func (n *VirtualNode) deviceOfPod(text string) (device.ID, error) {
	ids, err := n.devicesOfPod(text)
	if len(ids) > 0 {
		n.deviceByPod[text] = ids[0]
		return ids[0], nil
	}
	if id, ok := n.deviceByPod[text]; ok {
		return id, nil
	}
	return "", err
}

// devicesOfPod returns the devices of a pod, and an error if there are none.
func (n *VirtualNode) devicesOfPod(text string) (ids []device.ID, err error) {
	p, err := parsePod(text)
	if err != nil {
		return nil, err
	}
	status, err := n.Kubelet.Pod(p)
	for _, c := range status.Containers {
		for _, d := range c.Devices {
			ids = append(ids, device.AdvertisedID(d.ID).Device())
		}
	}
	if len(ids) == 0 && err == nil {
		err = fmt.Errorf("pod %s has no device", text)
	}
	return ids, err
}

// setWork sets the work of a device, or of all devices of a pod.
func setWork(_ context.Context, n *VirtualNode, args []string) error {
	find := n.devicesOfPod
	if !strings.Contains(args[0], "/") {
		find = func(text string) ([]device.ID, error) {
			id, err := n.findDevice(text)
			return []device.ID{id}, err
		}
	}
	ids, err := find(args[0])
	for _, id := range ids {
		if err == nil {
			err = n.Machine.SetWork(id, args[1])
		}
	}
	return err
}

func onMachine(do func(*Machine)) actionFunc {
	return func(_ context.Context, n *VirtualNode, _ []string) error {
		do(n.Machine)
		return nil
	}
}

// onDevice is an action with a device as first argument.
func onDevice(do func(m *Machine, id device.ID, args []string) error) actionFunc {
	return func(_ context.Context, n *VirtualNode, args []string) error {
		id, err := n.findDevice(args[0])
		if err != nil {
			return err
		}
		return do(n.Machine, id, args[1:])
	}
}

func withoutArgs(do func(*Machine, device.ID)) func(*Machine, device.ID, []string) error {
	return func(m *Machine, id device.ID, _ []string) error {
		do(m, id)
		return nil
	}
}

// setRow has the further arguments ROW VALUE.
func setRow(set func(m *Machine, id device.ID, row string, v float64)) func(*Machine, device.ID, []string) error {
	return func(m *Machine, id device.ID, args []string) error {
		if m.findRow(args[0]) < 0 {
			return fmt.Errorf("unknown row %s", args[0])
		}
		value, err := strconv.ParseFloat(args[1], 64)
		if err == nil {
			set(m, id, args[0], value)
		}
		return err
	}
}

// slowGPU has the further argument FRACTION.
func slowGPU(m *Machine, id device.ID, args []string) error {
	fraction, err := strconv.ParseFloat(args[0], 64)
	if err == nil {
		m.SetSlowdown(id, fraction)
	}
	return err
}

func partitionGPU(m *Machine, id device.ID, profiles []string) error {
	err := m.checkPartition(device.GPU(id), profiles)
	if err == nil {
		m.Partition(device.GPU(id), profiles...)
	}
	return err
}

// reportXids has the further arguments CODE [TIMES].
func reportXids(m *Machine, id device.ID, args []string) error {
	if _, err := strconv.ParseUint(args[0], 10, 64); err != nil {
		return err
	}
	times, err := strconv.Atoi(append(args, "1")[1])
	for range times {
		m.Fail(id, "xid "+args[0])
	}
	return err
}

// changeNICs has the arguments NIC,… ACTION.
func changeNICs(_ context.Context, n *VirtualNode, args []string) error {
	if n.sysfs == nil {
		return errors.New("the NICs of this node are not simulated")
	}
	nics, err := parseNICs(args[0])
	if err != nil {
		return err
	}
	return n.sysfs.change(nics, args[1])
}

// startUnattributed starts a process outside all containers: foreign use of an
// allocated device, and leaked memory on an unallocated one.
func startUnattributed(_ context.Context, n *VirtualNode, args []string) error {
	if n.ProcessTable == nil {
		return errors.New("the processes of this node are not simulated")
	}
	id, err := n.findDevice(args[0])
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseFloat(args[1], 64)
	if err == nil {
		n.ProcessTable.startUnattributed(id, bytes)
	}
	return err
}

// setFabric has the further argument joined, waiting or failed.
func setFabric(m *Machine, id device.ID, args []string) error {
	states := map[string]struct {
		completed, healthy float64
		fault              error
	}{
		"joined":  {1, 1, nil},
		"waiting": {0, 0, &device.Fault{Reason: "fabric_not_joined", Action: "inspect"}},
		"failed":  {1, 0, &device.Fault{Reason: "fabric", Action: "reset_gpu"}},
	}
	s, ok := states[args[0]]
	if !ok {
		return fmt.Errorf("fabric: unknown state %q", args[0])
	}
	m.SetValue(id, `nvidia_gpu_fabric_state{state="completed"}`, s.completed)
	m.SetValue(id, "nvidia_gpu_fabric_healthy", s.healthy)
	m.SetCheckError(id, s.fault)
	return nil
}

// reportSwitchError has the arguments NVSWITCH MESSAGE.
func reportSwitchError(_ context.Context, n *VirtualNode, args []string) error {
	nvswitch, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	return n.Machine.ReportSwitchError(nvswitch, strings.Join(args[1:], " "))
}

func setKubeletBehavior(ctx context.Context, n *VirtualNode, args []string) error {
	switch args[0] {
	case "well":
		n.Kubelet.SetFaults(kubelet.Faults{})
	case "silent":
		n.Kubelet.SetFaults(kubelet.Faults{ListErr: errors.New("pod-resources API is off")})
	case "refuses":
		n.Kubelet.SetFaults(kubelet.Faults{RegisterErr: errors.New("registration is off")})
		for name := range n.Kubelet.State().Resources {
			n.Kubelet.CutStreams(name)
		}
	case "restarts":
		ctx, cancel := context.WithTimeout(ctx, podStartTimeout)
		defer cancel()
		return n.Kubelet.Restart(ctx, nil)
	default:
		return fmt.Errorf("kubelet: unknown behavior %q", args[0])
	}
	return nil
}
