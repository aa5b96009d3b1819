package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ContainerPID is the id, on the machine, of a running container's first process.
func (n *RealNode) ContainerPID(ctx context.Context, p StaticPod, container string) (int, error) {
	pids, err := n.ContainerPIDs(ctx, p, container)
	if err != nil {
		return 0, err
	}
	return pids[0], nil
}

// ContainerPIDs are the ids, on the machine, of a running container's processes: at least one, the first one first.
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

// PIDInside is what a process is called in the node's own pid namespace, as the node's driver would call it.
func (n *RealNode) PIDInside(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		// NSpid: its id in this namespace, in the node's, in that of its container.
		if ids := strings.Fields(line); len(ids) > 2 && ids[0] == "NSpid:" {
			return strconv.Atoi(ids[2])
		}
	}
	return 0, fmt.Errorf("process %d is not in the node", pid)
}

// ContainerEnv is the environment of a running container's first process, as the kernel knows it.
func (n *RealNode) ContainerEnv(ctx context.Context, p StaticPod, container string) (map[string]string, error) {
	pid, err := n.ContainerPID(ctx, p, container)
	if err != nil {
		return nil, err
	}
	var b []byte
	err = Until(ctx, "the container's program runs", func(context.Context) (err error) {
		// The runtime says that it does a moment before runc's process becomes it.
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || bytes.HasPrefix(comm, []byte("runc:")) {
			return fmt.Errorf("it is %q: %w", comm, err)
		}
		b, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && len(b) == 0 { // in the midst of it
			err = errors.New("it has no environment yet")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for variable := range bytes.SplitSeq(bytes.TrimRight(b, "\x00"), []byte{0}) {
		name, value, _ := strings.Cut(string(variable), "=")
		env[name] = value
	}
	return env, nil
}

// ContainerMounts is where something is mounted in a running container, by path.
func (n *RealNode) ContainerMounts(ctx context.Context, p StaticPod, container string) ([]string, error) {
	pid, err := n.ContainerPID(ctx, p, container)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	paths := []string{}
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 4 { // the place is the fifth, as in cgroup.go
			paths = append(paths, fields[4])
		}
	}
	return paths, nil
}

// ContainerLog is what a container has printed in all its lives, also after its end.
func (n *RealNode) ContainerLog(p StaticPod, container string) (string, error) {
	lives, err := filepath.Glob(filepath.Join(n.PodLogs(), p.namespace()+"_"+p.FullName()+"_*", container, "*.log"))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, life := range lives {
		b, err := os.ReadFile(life)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(b)) { // time, stream, whether the line is whole, what was printed
			if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
				out.WriteString(fields[3])
			}
		}
	}
	return out.String(), nil
}
