package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// pidInside returns the id of a process in the node's pid namespace, as in the node's driver.
func pidInside(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		// NSpid: ids in the namespaces of the machine, the node and the container.
		if ids := strings.Fields(line); len(ids) > 2 && ids[0] == "NSpid:" {
			inside, err := strconv.Atoi(ids[2])
			if err != nil {
				t.Fatal(err)
			}
			return inside
		}
	}
	t.Fatalf("process %d is not in the node's pid namespace", pid)
	return 0
}

// containerEnv returns the environment of a running container's first process, from /proc.
func containerEnv(ctx context.Context, n *node.RealNode, p node.StaticPod, container string) (map[string]string, error) {
	pid, err := n.ContainerPID(ctx, p, container)
	if err != nil {
		return nil, err
	}
	var b []byte
	err = node.Until(ctx, "the container's program runs", func(context.Context) (err error) {
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

// containerMounts returns the mount points of a running container.
func containerMounts(ctx context.Context, n *node.RealNode, p node.StaticPod, container string) ([]string, error) {
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

// containerLog returns the output of a container including all restarts, also after its end.
func containerLog(n *node.RealNode, p node.StaticPod, container string) (string, error) {
	logs, err := filepath.Glob(filepath.Join(n.PodLogs(), "*_"+p.FullName()+"_*", container, "*.log"))
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

// containerAnnotations returns the kubelet's annotations of a container, from containerd.
func containerAnnotations(ctx context.Context, n *node.RealNode, p node.StaticPod, container string) (map[string]string, error) {
	pod, err := n.Pod(ctx, p)
	if err != nil {
		return nil, err
	}
	c, err := pod.Container(container)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix:"+n.RuntimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	response, err := cri.NewRuntimeServiceClient(conn).ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		return nil, fmt.Errorf("query containerd: %w", err)
	}
	return response.GetStatus().GetAnnotations(), nil
}
