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

// ContainerPID returns the machine's id of a running container's first process.
func (n *RealNode) ContainerPID(ctx context.Context, p StaticPod, container string) (int, error) {
	pids, err := n.ContainerPIDs(ctx, p, container)
	if err != nil {
		return 0, err
	}
	return pids[0], nil
}

// ContainerPIDs returns the machine's ids of a running container's processes, sorted; never empty without an error.
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

// PIDInside returns the id of a process in the node's pid namespace, as in the node's driver.
func (n *RealNode) PIDInside(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		// NSpid: ids in the namespaces of the machine, the node and the container.
		if ids := strings.Fields(line); len(ids) > 2 && ids[0] == "NSpid:" {
			return strconv.Atoi(ids[2])
		}
	}
	return 0, fmt.Errorf("process %d is not in the node", pid)
}

// ContainerEnv returns the environment of a running container's first process, from /proc.
func (n *RealNode) ContainerEnv(ctx context.Context, p StaticPod, container string) (map[string]string, error) {
	pid, err := n.ContainerPID(ctx, p, container)
	if err != nil {
		return nil, err
	}
	var b []byte
	err = Until(ctx, "the container's program runs", func(context.Context) (err error) {
		// The runtime reports the start shortly before runc executes the program.
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || bytes.HasPrefix(comm, []byte("runc:")) {
			return fmt.Errorf("process is %q: %w", comm, err)
		}
		b, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && len(b) == 0 { // during exec
			err = errors.New("environment is empty")
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

// ContainerMounts returns the mount points of a running container.
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
		if fields := strings.Fields(line); len(fields) > 4 { // the mount point is the fifth field
			paths = append(paths, fields[4])
		}
	}
	return paths, nil
}

// ContainerLog returns the output of a container including all restarts, also after its end.
func (n *RealNode) ContainerLog(p StaticPod, container string) (string, error) {
	logs, err := filepath.Glob(filepath.Join(n.PodLogs(), p.namespace()+"_"+p.FullName()+"_*", container, "*.log"))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, log := range logs {
		b, err := os.ReadFile(log)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(b)) { // time, stream, partial or full, output
			if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
				out.WriteString(fields[3])
			}
		}
	}
	return out.String(), nil
}
