package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// memoryCgroup is a memory cgroup with the chart's limit, like the cgroup of a container.
type memoryCgroup struct {
	parent string
	limits map[string]int // by file
	peaks  []string
	events string // has the number of killed processes
	dir    string
	// separateSockets is set with cgroup v1. With v2, one limit includes sockets and page cache: the kernel reclaims memory at the limit.
	separateSockets bool
}

// newMemoryCgroup creates a memory cgroup in the machine's hierarchy of cgroup v1 or v2.
func newMemoryCgroup(t *testing.T) memoryCgroup {
	t.Helper()
	c := memoryCgroup{
		parent: "/sys/fs/cgroup", limits: map[string]int{"memory.max": memoryLimit}, peaks: []string{"memory.peak"}, events: "memory.events",
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		// cgroup v1 counts the memory of sockets separately, and only with a separate limit, which containers lack.
		c = memoryCgroup{
			parent: "/sys/fs/cgroup/memory", limits: map[string]int{"memory.limit_in_bytes": memoryLimit, "memory.kmem.tcp.limit_in_bytes": 1 << 40},
			peaks: []string{"memory.max_usage_in_bytes", "memory.kmem.tcp.max_usage_in_bytes"}, events: "memory.oom_control",
			separateSockets: true,
		}
	}
	c.dir = fmt.Sprintf("%s/podgauge-attack-%d", c.parent, os.Getpid())
	require.NoError(t, os.Mkdir(c.dir, 0o755))
	t.Cleanup(func() {
		if err := os.Remove(c.dir); err != nil {
			t.Errorf("remove the cgroup: %v", err)
		}
	})
	for file, limit := range c.limits {
		require.NoError(t, os.WriteFile(c.file(file), []byte(strconv.Itoa(limit)), 0o644))
	}
	return c
}

func (c memoryCgroup) file(name string) string { return filepath.Join(c.dir, name) }

// read returns the content of a file of the cgroup.
func (c memoryCgroup) read(t *testing.T, name string) string {
	t.Helper()
	text := testfile.Read(t, c.file(name))
	return strings.TrimSpace(text)
}

// peak returns the peak memory in bytes, including page cache and sockets.
func (c memoryCgroup) peak(t *testing.T) (sum int) {
	t.Helper()
	for _, file := range c.peaks {
		n, err := strconv.Atoi(c.read(t, file))
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// checkKilled checks that the OOM killer killed no process.
func (c memoryCgroup) checkKilled(t *testing.T) {
	t.Helper()
	if events := c.read(t, c.events); !strings.Contains(events+"\n", "oom_kill 0\n") {
		t.Errorf("processes killed by the OOM killer: got %q, want none", events)
	}
}
