package app

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/program"
	"golang.org/x/sys/unix"
)

// TestStatusOfARunningNode checks that a process without HOME and terminal, such as one of kubectl exec, prints a running podgauge's devices.
func TestStatusOfARunningNode(t *testing.T) {
	w := newTestApp(t, 2)
	w.waitRegistered()
	w.runPodOn(gpuPod("research", "train", 1), w.machine.AllocatableIDs()[1])
	runCommand := func(args ...string) string {
		t.Helper()
		podgauge := exec.CommandContext(t.Context(), os.Args[0], args...)
		podgauge.Env = []string{program.Env + "=1"}
		podgauge.Stderr = os.Stderr
		out, err := podgauge.Output()
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return string(out)
	}
	address := "--web.listen-address=" + strings.TrimPrefix(w.url, "http://")
	// The end of the filler pod on the other GPU is noticed with the next List: without a scrape within ten seconds.
	waitUntil(t, "the status has only the owner", func() bool {
		status := runCommand("status", address)
		return strings.Contains(status, "research/train/main") && strings.Contains(status, " 1 allocated")
	})
	lines := strings.Split(runCommand("status", address), "\n")
	if len(lines) != 5 || lines[0] != "node-a: driver up; kubelet up; 2 of 2 devices healthy, 1 allocated" || !strings.Contains(lines[3], "research/train/main") {
		t.Errorf("status: got %q", lines)
	}
	if _, page := w.getPath("/"); !strings.Contains(page, `href="`+strings.TrimPrefix(api.IncidentsPath, "/")+`"`) {
		t.Errorf("/ does not link to the JSON: got %q", page)
	}
	if text := runCommand("incidents", address); text != "no incidents\n" {
		t.Errorf("got %q", text)
	}
	if body := runCommand("incidents", "-o=json", address, "--device=1"); !strings.HasSuffix(body, `"persisted":false,"total":0,"incidents":[]}`+"\n") {
		t.Errorf("got %s", body)
	}
}

// TestTerminal checks that terminals are distinguished from other files.
func TestTerminal(t *testing.T) {
	_, slave := openPTY(t)
	defer slave.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if !isTerminal(slave) || isTerminal(null) || isTerminal(io.Discard) {
		t.Error("want only the first to be a terminal")
	}
}

// openPTY opens a pseudoterminal. The master receives the output of the slave.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}
