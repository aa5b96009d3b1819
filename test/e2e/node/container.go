package node

import (
	"context"
	"fmt"
	"slices"
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
	if dir, found := n.cgroups.find(c.ID); found {
		if pids := pidsIn(dir); len(pids) > 0 {
			slices.Sort(pids)
			return pids, nil
		}
	}
	return nil, fmt.Errorf("container %s of pod %s has no process (%s %s)", container, p.Name, c.State, c.Reason)
}
