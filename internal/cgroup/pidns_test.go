package cgroup

import (
	"bytes"
	"log/slog"
	"os"
	"strconv"
	"testing"
)

func TestVisible(t *testing.T) {
	const (
		otherPIDs = "pid:[4026532771]"
		podV1     = "/kubepods/burstable/pod" + uid + "/"
		kindV1    = "/docker/" + idC
	)
	cases := []struct {
		name       string
		pids       string // the pid namespace
		pid        int
		own, first string // the cgroups of this process and of process 1
		want       bool
	}{
		// The node is a machine.
		{"hostPID", initPIDNamespace, selfPID, "0::/\n", "0::/../../../../init.scope\n", true},
		{"hostPID, process 1 unreadable", initPIDNamespace, selfPID, "0::/\n", "", true},
		{"started on the node", initPIDNamespace, selfPID, "0::/user.slice\n", "0::/init.scope\n", true},
		{"started on a node without systemd", initPIDNamespace, selfPID, "0::/\n", "0::/\n", true},
		{"node whose runtime is the first process", initPIDNamespace, 1, "0::/\n", "0::/\n", true},
		{"no hostPID, v2", otherPIDs, 1, "0::/\n", "0::/\n", false},
		{"no hostPID, v1", otherPIDs, 1, "4:memory:" + podV1 + idA + "\n", "4:memory:" + podV1 + idA + "\n", false},
		{"child of an entrypoint, v2", otherPIDs, selfPID, "0::/\n", "0::/\n", false},
		{"child of an entrypoint, v2, crun", otherPIDs, selfPID, "0::/\n", "0::/\n", false},
		{
			"child of an entrypoint, v1", otherPIDs, selfPID, "4:memory:" + podV1 + idA + "\n",
			"4:memory:" + podV1 + idA + "\n", false,
		},
		{
			"child of systemd, v1", otherPIDs, selfPID, "4:memory:" + podV1 + idA + "/system.slice\n",
			"4:memory:" + podV1 + idA + "/init.scope\n", false,
		},
		{
			"privileged child of an entrypoint, v2", otherPIDs, selfPID, "0::" + podV1 + idA + "\n",
			"0::" + podV1 + idA + "\n", false,
		},
		{"shareProcessNamespace, v2", otherPIDs, selfPID, "0::/\n", "0::/../" + idB + "\n", false},
		{
			"shareProcessNamespace, v2, systemd", otherPIDs, selfPID, "0::/\n",
			"0::/../cri-containerd-" + idB + ".scope\n", false,
		},
		{
			"shareProcessNamespace, v2, crun", otherPIDs, selfPID, "0::/\n",
			"0::/../../crio-" + idB + ".scope/container\n", false,
		},
		{
			"shareProcessNamespace, v1", otherPIDs, selfPID, "4:memory:" + podV1 + idA + "\n",
			"4:memory:" + podV1 + idB + "\n", false,
		},
		{
			"shareProcessNamespace, v1, runtime's cgroup in v2", otherPIDs, selfPID,
			"4:memory:" + podV1 + idA + "\n0::/system.slice/crio.service\n",
			"4:memory:" + podV1 + idB + "\n0::/system.slice/crio.service\n", false,
		},
		{
			"shareProcessNamespace, controller ignored by the runtime", otherPIDs, selfPID,
			"9:rdma:/\n4:memory:" + podV1 + idA + "\n", "9:rdma:/\n4:memory:" + podV1 + idB + "\n", false,
		},
		{
			"v2 beside a hierarchy with a name only", otherPIDs, selfPID, "1:name=systemd:/\n0::/\n",
			"1:name=systemd:/\n0::/\n", false,
		},
		{"no /proc/1", otherPIDs, selfPID, "0::/\n", "", false},
		{"no hierarchy in common", otherPIDs, selfPID, "4:memory:/\n", "3:cpu:/\n", false},

		// The node is a container.
		{"kind, hostPID, v2", otherPIDs, selfPID, "0::/\n", "0::/../../../../../init.scope\n", true},
		{"kind, hostPID, v2, process 1 in the root", otherPIDs, selfPID, "0::/\n", "0::/../../../..\n", true},
		{
			"kind, hostPID, v2, privileged", otherPIDs, selfPID,
			"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uidSlice + "/cri-containerd-" + idA +
				".scope\n", "0::/init.scope\n", true,
		},
		{
			"kind, hostPID, v1", otherPIDs, selfPID, "4:memory:" + kindV1 + "/kubelet" + podV1 + idA + "\n",
			"4:memory:" + kindV1 + "\n", true,
		},
		{
			"kind, hostPID, v1, systemd", otherPIDs, selfPID,
			"1:name=systemd:" + kindV1 + "/kubelet" + podV1 + idA + "\n0::" + kindV1 + "/system.slice/" +
				"containerd.service\n4:memory:" + kindV1 + "/kubelet" + podV1 + idA + "\n",
			"4:memory:" + kindV1 + "/init.scope\n0::" + kindV1 + "/init.scope\n", true,
		},
		{
			"kind, hostPID, v1, controller ignored by the runtime", otherPIDs, selfPID,
			"9:rdma:" + kindV1 + "\n4:memory:" + kindV1 + "/kubelet" + podV1 + idA + "\n",
			"9:rdma:" + kindV1 + "\n4:memory:" + kindV1 + "\n", true,
		},
		{
			"kind, shareProcessNamespace, v1", otherPIDs, selfPID, "4:memory:" + kindV1 + "/kubelet" + podV1 + idA +
				"\n",
			"4:memory:" + kindV1 + "/kubelet" + podV1 + idB + "\n", false,
		},
		{
			"kind in a pod, hostPID, v1", otherPIDs, selfPID,
			"4:memory:/kubepods/pod" + uid2 + "/" + idB + kindV1 + podV1 + idA + "\n",
			"4:memory:/kubepods/pod" + uid2 + "/" + idB + kindV1 + "\n", true,
		},
		{
			"k3s in a pod, hostPID, v1", otherPIDs, selfPID,
			"4:memory:/kubepods/pod" + uid2 + "/" + idB + podV1 + idA + "\n",
			"4:memory:/kubepods/pod" + uid2 + "/" + idB + "\n", true,
		},
		{"started by hand on kind, v2", otherPIDs, selfPID, "0::/\n", "0::/init.scope\n", true},
		{
			"started by hand on a node in namespaces, v1", otherPIDs, selfPID, "9:name=systemd:/\n4:memory:/\n0::/\n",
			"9:name=systemd:/\n4:memory:/\n0::/\n", true,
		},
		{"started by hand on a node in namespaces, v2", otherPIDs, selfPID, "0::/\n", "0::/\n", false},
		// indistinguishable from the child of an entrypoint
		// likewise
		{
			"started by hand on kind, v1", otherPIDs, selfPID, "4:memory:" + kindV1 + "\n",
			"4:memory:" + kindV1 + "/init.scope\n", false,
		},
		{"process 1 in a container below", otherPIDs, selfPID, "4:memory:/\n", "4:memory:" + kindV1 + "\n", false},
		// likewise
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newProcFixture(t)
			s.must(os.RemoveAll(s.proc + "/self"))
			s.addProcess(uint32(c.pid), c.own)
			s.must(os.Mkdir(s.proc+"/"+strconv.Itoa(c.pid)+"/ns", 0o755))
			s.must(os.Symlink(c.pids, s.proc+"/"+strconv.Itoa(c.pid)+"/ns/pid"))
			s.must(os.Symlink(strconv.Itoa(c.pid), s.proc+"/self"))
			if c.first != "" {
				s.addProcess(1, c.first)
			}
			var log bytes.Buffer
			l := New(Options{Proc: s.proc, Pods: s.pods, Logs: s.logs, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if got := l.Visible(); got != c.want {
				t.Errorf("Visible: got %v, want %v", got, c.want)
			}
			if logged := lineCount(&log) == 1; logged == c.want {
				t.Errorf("Visible is %v, got log %q", c.want, log.String())
			}
		})
	}
}

// TestNoProc has no /proc.
func TestNoProc(t *testing.T) {
	s := newProcFixture(t)
	s.must(os.RemoveAll(s.proc))
	l := s.newLocator()
	if l.Visible() {
		t.Error("Visible without /proc: got true, want false")
	}
	s.addProcess(5, cgroupFileA) // after New: visibility never changes
	s.addLogLink(train, idA)
	s.wantOwner(l, 5, noOwner, train)
}

// TestVisibleHere checks the machine of the test.
func TestVisibleHere(t *testing.T) {
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || pids != initPIDNamespace {
		t.Skipf("pid namespace %s (%v) is not the initial one", pids, err)
	}
	if !New(Options{Log: discardLog}).Visible() {
		t.Error("Visible in the initial pid namespace: got false, want true")
	}
}
