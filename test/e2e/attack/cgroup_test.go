package attack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// memoryCgroup is a memory cgroup with a limit, like the cgroup of a container.
type memoryCgroup struct {
	dir string
	v2  bool
}

// newMemoryCgroup creates a memory cgroup. If the machine does not allow it, the test is skipped, or fails if strict.
func newMemoryCgroup(t *testing.T, limit int) *memoryCgroup {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "a memory cgroup requires root")
	}
	root, v2, err := memoryHierarchy()
	if err != nil {
		skip(t, "no memory cgroup on this machine: ", err)
	}
	c := &memoryCgroup{dir: filepath.Join(root, fmt.Sprintf("podgauge-attack-%d", os.Getpid())), v2: v2}
	if v2 {
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0o644); err != nil {
			skip(t, "no memory limits below this cgroup: ", err)
		}
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		skip(t, "no memory cgroup on this machine: ", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(c.dir); err != nil {
			t.Errorf("remove the cgroup: %v", err)
		}
	})
	// cgroup v1 counts the memory of sockets separately, and only with a separate limit, which containers lack.
	limits := map[string]string{"memory.limit_in_bytes": strconv.Itoa(limit), "memory.kmem.tcp.limit_in_bytes": strconv.Itoa(1 << 40)}
	if v2 {
		limits = map[string]string{"memory.max": strconv.Itoa(limit), "memory.swap.max": "0"}
	}
	for file, value := range limits {
		err := os.WriteFile(filepath.Join(c.dir, file), []byte(value), 0o644)
		if err != nil && (file != "memory.swap.max" || !errors.Is(err, os.ErrNotExist)) {
			t.Fatalf("limit memory: %v", err)
		}
	}
	return c
}

// memoryHierarchy returns the mount point of the hierarchy with the memory controller.
func memoryHierarchy() (root string, v2 bool, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(mounts)); lines.Scan(); {
		// proc_pid_mountinfo(5): the mount point is the fifth field; type and options are at the end.
		mount, kind, _ := strings.Cut(lines.Text(), " - ")
		at, fields := strings.Fields(mount)[4], strings.Fields(kind)
		switch fields[0] {
		case "cgroup":
			if strings.Contains(","+fields[2]+",", ",memory,") {
				return at, false, nil
			}
		case "cgroup2":
			if controllers, _ := os.ReadFile(filepath.Join(at, "cgroup.controllers")); bytes.Contains(controllers, []byte("memory")) {
				root, v2 = at, true
			}
		}
	}
	if root == "" {
		return "", false, errors.New("no hierarchy has the memory controller")
	}
	return root, v2, nil
}

// procs returns the file that adds processes to the cgroup.
func (c *memoryCgroup) procs() string { return filepath.Join(c.dir, "cgroup.procs") }

// peak returns the peak memory in bytes, including page cache and sockets.
func (c *memoryCgroup) peak(t *testing.T) int {
	t.Helper()
	if c.v2 {
		return c.number(t, "memory.peak") // Linux 5.19
	}
	return c.number(t, "memory.max_usage_in_bytes") + c.number(t, "memory.kmem.tcp.max_usage_in_bytes")
}

// number returns the number in a file of the cgroup.
func (c *memoryCgroup) number(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// killed returns the number of processes that the OOM killer killed.
func (c *memoryCgroup) killed(t *testing.T) string {
	t.Helper()
	file := "memory.oom_control"
	if c.v2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, found := strings.CutPrefix(line, "oom_kill "); found {
			return strings.TrimSpace(n)
		}
	}
	return "0" // kernels before 4.13 lack the count
}
