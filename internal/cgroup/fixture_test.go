package cgroup_test

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/test/helpers/require"
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
	cgroupFileB = "0::/kubepods/burstable/pod" + uid2 + "/" + idB + "\n"
	nodePIDs    = "pid:[4026531836]" // the initial pid namespace
)

var (
	noOwner allocation.Owner
	train   = allocation.Owner{Namespace: "ml", Pod: "train-0", Container: "main"}
	side    = allocation.Owner{Namespace: "ml", Pod: "train-0", Container: "side"}
	infer   = allocation.Owner{Namespace: "web", Pod: "infer", Container: "main"}
)

// procFixture has the directories of a node.
type procFixture struct {
	t                testing.TB
	proc, pods, logs string
}

func newProcFixture(t testing.TB) *procFixture {
	dir := t.TempDir()
	s := &procFixture{t: t, proc: dir + "/proc", pods: dir + "/pods", logs: dir + "/containers"}
	for _, d := range []string{s.proc, s.pods, s.logs} {
		require.NoError(s.t, os.Mkdir(d, 0o755))
	}
	s.setSelf(selfPID, nodePIDs, "")
	return s
}

// setSelf sets the process and pid namespace of the Locator.
func (s *procFixture) setSelf(pid int, pids, cgroup string) {
	s.t.Helper()
	require.NoError(s.t, os.RemoveAll(s.proc+"/self"))
	s.addProcess(uint32(pid), cgroup)
	dir := filepath.Join(s.proc, strconv.Itoa(pid), "ns")
	require.NoError(s.t, os.RemoveAll(dir))
	require.NoError(s.t, os.Mkdir(dir, 0o755))
	require.NoError(s.t, os.Symlink(pids, dir+"/pid"))
	require.NoError(s.t, os.Symlink(strconv.Itoa(pid), s.proc+"/self"))
}

func (s *procFixture) options() cgroup.Options {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	return cgroup.Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: log}
}

func (s *procFixture) newLocator() *cgroup.Locator { return cgroup.New(s.options()) }

// addProcess adds a process or changes its cgroup.
func (s *procFixture) addProcess(pid uint32, file string) {
	s.t.Helper()
	dir := filepath.Join(s.proc, strconv.Itoa(int(pid)))
	require.NoError(s.t, os.MkdirAll(dir, 0o755))
	require.NoError(s.t, os.WriteFile(dir+"/cgroup", []byte(file), 0o644))
}

// addLogLink adds the kubelet's link of a container, without the target, as in
// a container with a mount of the links only.
func (s *procFixture) addLogLink(o allocation.Owner, id string) {
	s.t.Helper()
	name := o.Pod + "_" + o.Namespace + "_" + o.Container + "-" + id
	name = name[:min(len(name), 251)] + ".log" // pkg/kubelet/kuberuntime/legacy.go
	require.NoError(s.t, os.Symlink("/nowhere/0.log", filepath.Join(s.logs, name)))
}

// addPodDirs adds the kubelet's folders of a pod's containers.
func (s *procFixture) addPodDirs(o allocation.Owner, uid string, containers ...string) {
	s.t.Helper()
	dir := filepath.Join(s.pods, o.Namespace+"_"+o.Pod+"_"+uid)
	require.NoError(s.t, os.MkdirAll(dir, 0o755))
	for _, c := range containers {
		require.NoError(s.t, os.MkdirAll(filepath.Join(dir, c), 0o755))
	}
}

// wantOwner checks the owner of a process. The zero Owner means none.
func (s *procFixture) wantOwner(l *cgroup.Locator, pid uint32, want allocation.Owner, candidates ...allocation.Owner) {
	s.t.Helper()
	got, ok := l.Owner(pid, candidates)
	if got != want || ok != (want != allocation.Owner{}) {
		s.t.Errorf("owner of process %d: got %v, %v, want %v", pid, got, ok, want)
	}
}
