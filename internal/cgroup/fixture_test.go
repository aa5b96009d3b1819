package cgroup

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// Identities of the test pods.
const (
	uidSlice    = "2c48913c_b29f_11e7_9350_020968147796.slice" // by systemd
	uid         = "2c48913c-b29f-11e7-9350-020968147796"
	uid2        = "74c13223-5a00-11e9-b385-42010a80018d"
	idA         = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
	idB         = "34dc0b5e626f2c5c4c5170e34b10e7654ce36f0fcd532739f4445baabea03376"
	idC         = "93529524695bb00d91c1f6dba692ea8d3550c3b94fb2463af7bc9ec82f992d26"
	selfPID     = 77
	cgroupFileA = "0::/kubepods/burstable/pod" + uid + "/" + idA + "\n"
)

var (
	train = device.Owner{Namespace: "ml", Pod: "train-0", Container: "main"}
	side  = device.Owner{Namespace: "ml", Pod: "train-0", Container: "side"}
	infer = device.Owner{Namespace: "web", Pod: "infer", Container: "main"}
)

// procFixture has the directories of a node.
type procFixture struct {
	t                testing.TB
	proc, pods, logs string
}

func newProcFixture(t testing.TB) *procFixture {
	dir := t.TempDir()
	s := &procFixture{t: t, proc: dir + "/proc", pods: dir + "/pods", logs: dir + "/containers"}
	for _, d := range []string{s.proc + "/self", s.pods, s.logs} {
		s.must(os.MkdirAll(d, 0o755))
	}
	s.must(os.Mkdir(s.proc+"/self/ns", 0o755))
	s.must(os.Symlink(initPIDNamespace, s.proc+"/self/ns/pid"))
	return s
}

func (s *procFixture) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// newLocator returns a Locator of the directories.
func (s *procFixture) newLocator() *Locator {
	return New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: discardLog})
}

var discardLog = slog.New(slog.NewTextHandler(io.Discard, nil))

// addProcess adds a process or changes its cgroup.
func (s *procFixture) addProcess(pid uint32, cgroup string) {
	s.t.Helper()
	dir := filepath.Join(s.proc, strconv.Itoa(int(pid)))
	s.must(os.MkdirAll(dir, 0o755))
	s.must(os.WriteFile(dir+"/comm", []byte("python\n"), 0o644))
	s.must(os.WriteFile(dir+"/cgroup", []byte(cgroup), 0o644))
}

// addLiveProcess adds a process with the comm file of a real process. The
// function end ends the process.
func (s *procFixture) addLiveProcess(pid uint32, cgroup string) (end func()) {
	s.t.Helper()
	cat := exec.Command("cat")
	in, err := cat.StdinPipe() // ends cat at the end of the test, if not earlier
	s.must(err)
	s.must(cat.Start())
	end = func() {
		_ = in.Close()
		_ = cat.Wait()
	}
	s.t.Cleanup(end)
	s.addProcess(pid, cgroup)
	comm := filepath.Join(s.proc, strconv.Itoa(int(pid)), "comm")
	s.must(os.Remove(comm))
	s.must(os.Symlink("/proc/"+strconv.Itoa(cat.Process.Pid)+"/comm", comm))
	return end
}

// addLogLink adds the kubelet's link of a container, without the target, as in
// a container with a mount of the links only.
func (s *procFixture) addLogLink(o device.Owner, id string) {
	s.t.Helper()
	name := o.Pod + "_" + o.Namespace + "_" + o.Container + "-" + id
	name = name[:min(len(name), 251)] + ".log" // pkg/kubelet/kuberuntime/legacy.go
	s.must(os.Symlink("/nowhere/0.log", filepath.Join(s.logs, name)))
}

// addPodDirs adds the kubelet's folders of a pod's containers.
func (s *procFixture) addPodDirs(o device.Owner, uid string, containers ...string) {
	s.t.Helper()
	dir := filepath.Join(s.pods, o.Namespace+"_"+o.Pod+"_"+uid)
	s.must(os.MkdirAll(dir, 0o755))
	for _, c := range containers {
		s.must(os.MkdirAll(filepath.Join(dir, c), 0o755))
	}
}

// wantOwner checks the owner of a process. The zero Owner means none.
func (s *procFixture) wantOwner(l *Locator, pid uint32, want device.Owner, candidates ...device.Owner) {
	s.t.Helper()
	got, ok := l.Owner(pid, candidates)
	if got != want || ok != (want != device.Owner{}) {
		s.t.Errorf("owner of process %d: got %v, %v, want %v", pid, got, ok, want)
	}
}

// lineCount returns the number of log lines.
func lineCount(b *bytes.Buffer) int { return strings.Count(b.String(), "\n") }

// cgroupFile returns the cgroup v2 file of a container.
func cgroupFile(uid, id string) string { return "0::/kubepods/burstable/pod" + uid + "/" + id + "\n" }
