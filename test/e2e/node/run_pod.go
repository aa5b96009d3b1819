package node

import (
	"context"
	"fmt"
)

// RunPod creates a pod, waits until all containers have started or the pod has
// failed, and returns the status.
func (n *RealNode) RunPod(ctx context.Context, p StaticPod) (StaticPodStatus, error) {
	uid, err := n.CreatePod(p)
	if err != nil {
		return StaticPodStatus{}, err
	}
	var status StaticPodStatus
	err = Until(ctx, fmt.Sprintf("pod %s runs", p.Name), func(ctx context.Context) (err error) {
		if status, err = n.Pod(ctx, p); err != nil {
			return err
		}
		if status.UID != uid || !status.hasStarted(p) {
			return fmt.Errorf("pod status is %+v", status)
		}
		return nil
	})
	return status, err
}

// RemovePod deletes a pod and waits until all processes have ended.
func (n *RealNode) RemovePod(ctx context.Context, p StaticPod) error {
	status, err := n.Pod(ctx, p)
	if err != nil {
		return err
	}
	if err := n.DeletePod(p); err != nil {
		return err
	}
	return Until(ctx, fmt.Sprintf("pod %s has ended", p.Name), func(context.Context) error {
		dir, _ := findCgroup(n.cgroups, "pod"+status.UID) // exists for a while without processes
		for _, container := range subdirs(dir) {
			if pids := pidsIn(container); len(pids) > 0 {
				return fmt.Errorf("processes %v still run", pids)
			}
		}
		return nil
	})
}
