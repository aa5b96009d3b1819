package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestDownLeavesNothing checks that Down removes all resources of a node, including a container that ignores SIGTERM.
func TestDownLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	stubborn := node.StaticPod{Name: "stubborn", Containers: []node.StaticContainer{{Name: "main", Args: []string{"stubborn"}}}}
	if _, err := n.RunPod(ctx, stubborn); err != nil {
		t.Fatal(err)
	}
	up, err := n.Resources()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"/box stubborn", "cgroup ", "network link ", "folder "} {
		if !strings.Contains(strings.Join(up, "\n"), kind) {
			t.Errorf("resources of a running node: got %q, want one with %q", up, kind)
		}
	}
	if err := n.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if left, err := node.Leftovers(ctx, node.Options{}); err != nil || len(left) > 0 {
		t.Errorf("resources after Down: got %q, %v, want none", left, err)
	}
}

// TestKilledTestLeavesNothing kills a test process with a running node. The node's processes end with it, and CleanUp removes the rest.
func TestKilledTestLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o := node.Options{Dir: t.TempDir()} // CleanUp removes all logs in the folder, so no other test may use it
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), abandonNodeEnv+"="+o.Dir)
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var kubelet, container int
	if _, err := fmt.Fscanf(stdout, abandonedNodeUpFormat, &kubelet, &container); err != nil {
		t.Fatalf("start the child's node: %v", err)
	}
	if err := errors.Join(syscall.Kill(kubelet, 0), syscall.Kill(container, 0)); err != nil {
		t.Fatalf("the child's node does not run: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed

	err = node.Until(ctx, "the node's processes have ended with the test process", func(context.Context) error {
		for _, pid := range []int{kubelet, container} {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("process %d still exists: %w", pid, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := node.CleanUp(ctx, o); err != nil {
		t.Fatal(err)
	}
	if left, err := node.Leftovers(ctx, o); err != nil || len(left) > 0 {
		t.Errorf("resources after CleanUp: got %q, %v, want none", left, err)
	}
}

const (
	// abandonNodeEnv makes the test binary run as the child that is killed. The value is the folder of the child's node.
	abandonNodeEnv = "PODGAUGE_E2E_ABANDON"
	// abandonedNodeUpFormat is the child's output after the start of its node, with two of the node's process ids.
	abandonedNodeUpFormat = "up: kubelet %d, container %d\n"
)

// runAbandonedNode is the main function of the child: it starts a node with a pod, prints the process ids and waits to be killed.
func runAbandonedNode(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	err := startAbandonedNode(ctx, dir)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func startAbandonedNode(ctx context.Context, dir string) error {
	n, err := node.Up(ctx, node.Options{Dir: dir})
	if err != nil {
		return err
	}
	if _, err := n.StartKubelet(ctx); err != nil {
		return err
	}
	orphan := node.StaticPod{Name: "orphan", Containers: []node.StaticContainer{{Name: "main"}}}
	if _, err := n.RunPod(ctx, orphan); err != nil {
		return err
	}
	container, err := n.ContainerPID(ctx, orphan, "main")
	fmt.Printf(abandonedNodeUpFormat, n.Kubelet().PID, container)
	return err
}
