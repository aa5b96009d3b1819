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

func TestDownLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	if _, err := n.RunPod(ctx, node.StaticPod{Name: "stubborn", Containers: []node.StaticContainer{{Name: "main", Args: []string{"stubborn"}}}}); err != nil {
		t.Fatal(err)
	}
	up, err := n.Resources()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"/box stubborn", "cgroup ", "network link ", "folder "} {
		if !strings.Contains(strings.Join(up, "\n"), kind) {
			t.Errorf("a node that is up shows no %q but %q", kind, up)
		}
	}
	if err := n.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if left, err := node.Leftovers(ctx, node.Options{}); err != nil || len(left) > 0 {
		t.Errorf("%v, and left are %q", err, left)
	}
}

// TestKilledTestLeavesNothing kills a process that has a node up. Its node's processes go with it, and Clean removes the rest.
func TestKilledTestLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o := node.Options{Dir: t.TempDir()} // Clean removes logs too: here those of nobody else
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
		t.Fatalf("the child did not get its node up: %v", err)
	}
	if err := errors.Join(syscall.Kill(kubelet, 0), syscall.Kill(container, 0)); err != nil {
		t.Fatalf("the child's node does not run: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed

	err = node.Until(ctx, "the node's processes have died with their parent", func(context.Context) error {
		for _, pid := range []int{kubelet, container} {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("process %d is there: %w", pid, err)
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
		t.Errorf("%v, and left are %q", err, left)
	}
}

const (
	// abandonNodeEnv makes the test binary the child that is killed, with its node in the folder that is named.
	abandonNodeEnv = "PODGAUGE_E2E_ABANDON"
	// abandonedNodeUpFormat is what the child says when its node is up, with two of the node's processes.
	abandonedNodeUpFormat = "up: kubelet %d, container %d\n"
)

// runAbandonedNode is the child: it brings a node with a pod up, says so, and waits for the end that it cannot see coming.
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
