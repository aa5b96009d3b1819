package containers

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

// What the tests' pods are called.
const (
	uid   = "2c48913c-b29f-11e7-9350-020968147796"
	uid2  = "74c13223-5a00-11e9-b385-42010a80018d"
	idA   = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
	idB   = "34dc0b5e626f2c5c4c5170e34b10e7654ce36f0fcd532739f4445baabea03376"
	idC   = "93529524695bb00d91c1f6dba692ea8d3550c3b94fb2463af7bc9ec82f992d26"
	self  = 77
	inOne = "0::/kubepods/burstable/pod" + uid + "/" + idA + "\n"
)

var (
	train = device.Owner{Namespace: "ml", Pod: "train-0", Container: "main"}
	side  = device.Owner{Namespace: "ml", Pod: "train-0", Container: "side"}
	infer = device.Owner{Namespace: "web", Pod: "infer", Container: "main"}
)

// stage is a node's folders, made up.
type stage struct {
	t                testing.TB
	proc, pods, logs string
}

func newStage(t testing.TB) *stage {
	dir := t.TempDir()
	s := &stage{t: t, proc: dir + "/proc", pods: dir + "/pods", logs: dir + "/containers"}
	for _, d := range []string{s.proc + "/self", s.pods, s.logs} {
		s.must(os.MkdirAll(d, 0o755))
	}
	s.must(os.Mkdir(s.proc+"/self/ns", 0o755))
	s.must(os.Symlink(nodePIDs, s.proc+"/self/ns/pid"))
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// locator is one that looks at the stage.
func (s *stage) locator() *Locator {
	return New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: silent})
}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// process makes a process, or changes its cgroup.
func (s *stage) process(pid uint32, cgroup string) {
	s.t.Helper()
	dir := filepath.Join(s.proc, strconv.Itoa(int(pid)))
	s.must(os.MkdirAll(dir, 0o755))
	s.must(os.WriteFile(dir+"/comm", []byte("python\n"), 0o644))
	s.must(os.WriteFile(dir+"/cgroup", []byte(cgroup), 0o644))
}

// alive makes a process whose life is that of a real one; the function ends it.
func (s *stage) alive(pid uint32, cgroup string) (end func()) {
	s.t.Helper()
	cat := exec.Command("cat")
	in, err := cat.StdinPipe() // it ends with the test, whatever happens
	s.must(err)
	s.must(cat.Start())
	end = func() {
		_ = in.Close()
		_ = cat.Wait()
	}
	s.t.Cleanup(end)
	s.process(pid, cgroup)
	comm := filepath.Join(s.proc, strconv.Itoa(int(pid)), "comm")
	s.must(os.Remove(comm))
	s.must(os.Symlink("/proc/"+strconv.Itoa(cat.Process.Pid)+"/comm", comm))
	return end
}

// log makes the kubelet's link for a container: it dangles here, as it does in a
// container that has only the links mounted.
func (s *stage) log(o device.Owner, id string) {
	s.t.Helper()
	name := o.Pod + "_" + o.Namespace + "_" + o.Container + "-" + id
	name = name[:min(len(name), 251)] + ".log" // pkg/kubelet/kuberuntime/legacy.go
	s.must(os.Symlink("/nowhere/0.log", filepath.Join(s.logs, name)))
}

// folders makes the kubelet's folders for a pod's containers.
func (s *stage) folders(o device.Owner, uid string, containers ...string) {
	s.t.Helper()
	dir := filepath.Join(s.pods, o.Namespace+"_"+o.Pod+"_"+uid)
	s.must(os.MkdirAll(dir, 0o755))
	for _, c := range containers {
		s.must(os.MkdirAll(filepath.Join(dir, c), 0o755))
	}
}

// is says what a process must be attributed to; the zero Owner: to nobody.
func (s *stage) is(l *Locator, pid uint32, want device.Owner, holders ...device.Owner) {
	s.t.Helper()
	got, ok := l.Owner(pid, holders)
	if got != want || ok != (want != device.Owner{}) {
		s.t.Errorf("process %d is of %v, %v: want %v", pid, got, ok, want)
	}
}

// lines are what a log wrote.
func lines(b *bytes.Buffer) int { return strings.Count(b.String(), "\n") }

// in is a cgroup v2 file of a container.
func in(uid, id string) string { return "0::/kubepods/burstable/pod" + uid + "/" + id + "\n" }
