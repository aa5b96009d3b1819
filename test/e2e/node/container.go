package node

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ContainerPID returns the machine's id of a running container's first process.
func (n *RealNode) ContainerPID(ctx context.Context, p StaticPod, container string) (int, error) {
	pids, err := n.ContainerPIDs(ctx, p, container)
	if err != nil {
		return 0, err
	}
	return pids[0], nil
}

// ContainerPIDs returns the machine's ids of a running container's processes,
// sorted; never empty without an error.
func (n *RealNode) ContainerPIDs(ctx context.Context, p StaticPod, container string) ([]int, error) {
	pod, err := n.Pod(ctx, p)
	if err != nil {
		return nil, err
	}
	c, err := pod.Container(container)
	if err != nil {
		return nil, err
	}
	if dir, found := findCgroup(n.cgroups, c.ID); found {
		if pids := pidsIn(dir); len(pids) > 0 {
			slices.Sort(pids)
			return pids, nil
		}
	}
	return nil, fmt.Errorf("container %s of pod %s has no process (%s %s)", container, p.Name, c.State, c.Reason)
}

// nsPIDs matches the ids of a process in /proc/PID/status, outermost PID
// namespace first.
var nsPIDs = regexp.MustCompile(`(?m)^NSpid:(.*)$`)

// PIDInside returns the id of a process in the node's PID namespace, as in the
// node's driver.
func (n *RealNode) PIDInside(pid int) (int, error) {
	var ids [2][]string
	for i, id := range []int{n.nsenter.init.Process.Pid, pid} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id))
		if err != nil {
			return 0, err
		}
		ids[i] = strings.Fields(string(nsPIDs.FindSubmatch(b)[1]))
	}
	level := len(ids[0]) // of the node's namespace: that of its first process
	if len(ids[1]) < level {
		return 0, fmt.Errorf("process %d is not in the node's PID namespace", pid)
	}
	return strconv.Atoi(ids[1][level-1])
}
