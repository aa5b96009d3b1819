package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// processStatus returns a field of /proc/PID/status.
func processStatus(t *testing.T, pid int, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process status: got no %s: %s", field, b)
	return ""
}

// pidInside returns the id of a process in the node's pid namespace, as in the node's driver.
func pidInside(t *testing.T, n *node.RealNode, pid int) int {
	t.Helper()
	inside, err := n.PIDInside(pid)
	must(t, err)
	return inside
}

// allowedCPUs returns the numbers and ranges of the CPUs that a running container may use.
func allowedCPUs(t *testing.T, n *node.RealNode, pod node.StaticPod) []string {
	t.Helper()
	return strings.Split(processStatus(t, mainPID(t, n, pod), "Cpus_allowed_list"), ",")
}

// mainPID returns the machine's id of the first process of a pod's running container "main".
func mainPID(t *testing.T, n *node.RealNode, p node.StaticPod) int {
	t.Helper()
	pid, err := n.ContainerPID(t.Context(), p, "main")
	must(t, err)
	return pid
}

// checkVisibleDevices checks the environment variable of NVIDIA's container runtime.
func checkVisibleDevices(t *testing.T, n *node.RealNode, p node.StaticPod, want string) {
	t.Helper()
	pid := mainPID(t, n, p)
	var environ []byte
	await(t, "the container's program runs", func(context.Context) (err error) {
		// The runtime reports the start shortly before runc executes the program.
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || bytes.HasPrefix(comm, []byte("runc:")) {
			return fmt.Errorf("process is %q: %w", comm, err)
		}
		environ, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && len(environ) == 0 { // during exec
			err = errors.New("environment is empty")
		}
		return err
	})
	if !bytes.Contains(append([]byte{0}, environ...), []byte("\x00NVIDIA_VISIBLE_DEVICES="+want+"\x00")) {
		t.Errorf("environment of pod %s: got %q, want NVIDIA_VISIBLE_DEVICES=%s", p.Name, environ, want)
	}
}

// containerMounts returns the mount points of a pod's running container "main".
func containerMounts(t *testing.T, n *node.RealNode, p node.StaticPod) (paths []string) {
	t.Helper()
	b := testfile.Read(t, fmt.Sprintf("/proc/%d/mountinfo", mainPID(t, n, p)))
	for line := range strings.Lines(b) {
		if fields := strings.Fields(line); len(fields) > 4 { // the mount point is the fifth field
			paths = append(paths, fields[4])
		}
	}
	return paths
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

// containerAnnotations returns the kubelet's annotations of a pod's container "main", from containerd.
func containerAnnotations(t *testing.T, n *node.RealNode, p node.StaticPod) map[string]string {
	t.Helper()
	pod, err := n.Pod(t.Context(), p)
	must(t, err)
	c, err := pod.Container("main")
	must(t, err)
	conn, err := grpc.NewClient("unix:"+n.RuntimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	response, err := cri.NewRuntimeServiceClient(conn).ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: c.ID})
	must(t, err)
	return response.GetStatus().GetAnnotations()
}
