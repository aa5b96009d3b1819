package cgroup_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestVisible(t *testing.T) {
	const (
		otherPIDs = "pid:[4026532771]"
		podV1     = "/kubepods/burstable/pod" + uid + "/"
		kindV1    = "/docker/" + idC
	)
	const (
		memA  = "4:memory:" + podV1 + idA + "\n"
		memB  = "4:memory:" + podV1 + idB + "\n"
		kind  = "4:memory:" + kindV1 + "\n"
		kindA = "4:memory:" + kindV1 + "/kubelet" + podV1 + idA + "\n"
		kindB = "4:memory:" + kindV1 + "/kubelet" + podV1 + idB + "\n"
		inPod = "4:memory:/kubepods/pod" + uid2 + "/" + idB
		slice = "0::/kubelet.slice/kubelet-kubepods-pod" + uidSlice + "/cri-containerd-" + idA + ".scope\n"
		crio  = "0::/system.slice/crio.service\n"
		named = "9:name=systemd:/\n"
	)
	for _, c := range []struct {
		name       string
		pids       string // the pid namespace
		pid        int
		own, first string // the cgroups of this process and of process 1
		want       bool
	}{
		// The node is a machine.
		{"hostPID", nodePIDs, selfPID, "0::/\n", "0::/../../../../init.scope\n", true},
		{"hostPID, process 1 unreadable", nodePIDs, selfPID, "0::/\n", "", true},
		{"started on the node", nodePIDs, selfPID, "0::/user.slice\n", "0::/init.scope\n", true},
		{"started on a node without systemd", nodePIDs, selfPID, "0::/\n", "0::/\n", true},
		{"node whose runtime is the first process", nodePIDs, 1, "0::/\n", "0::/\n", true},
		{"no hostPID, v2", otherPIDs, 1, "0::/\n", "0::/\n", false},
		{"no hostPID, v1", otherPIDs, 1, memA, memA, false},
		{"child of an entrypoint, v2", otherPIDs, selfPID, "0::/\n", "0::/\n", false},
		{"child of an entrypoint, v1", otherPIDs, selfPID, memA, memA, false},
		{
			"child of systemd, v1", otherPIDs, selfPID, "4:memory:" + podV1 + idA + "/system.slice\n",
			"4:memory:" + podV1 + idA + "/init.scope\n", false,
		},
		{"privileged child, v2", otherPIDs, selfPID, "0::" + podV1 + idA + "\n", "0::" + podV1 + idA + "\n", false},
		{"shareProcessNamespace, v2", otherPIDs, selfPID, "0::/\n", "0::/../" + idB + "\n", false},
		{"… systemd", otherPIDs, selfPID, "0::/\n", "0::/../cri-containerd-" + idB + ".scope\n", false},
		{"… crun", otherPIDs, selfPID, "0::/\n", "0::/../../crio-" + idB + ".scope/container\n", false},
		{"shareProcessNamespace, v1", otherPIDs, selfPID, memA, memB, false},
		{"… runtime's cgroup in v2", otherPIDs, selfPID, memA + crio, memB + crio, false},
		{"… controller ignored by the runtime", otherPIDs, selfPID, "9:rdma:/\n" + memA, "9:rdma:/\n" + memB, false},
		{"v2 beside a hierarchy with a name only", otherPIDs, selfPID, named + "0::/\n", named + "0::/\n", false},
		{"no /proc/1", otherPIDs, selfPID, "0::/\n", "", false},
		{"no hierarchy in common", otherPIDs, selfPID, "4:memory:/\n", "3:cpu:/\n", false},
		// The node is a container.
		{"kind, hostPID, v2", otherPIDs, selfPID, "0::/\n", "0::/../../../../../init.scope\n", true},
		{"… process 1 in the root", otherPIDs, selfPID, "0::/\n", "0::/../../../..\n", true},
		{"… privileged", otherPIDs, selfPID, slice, "0::/init.scope\n", true},
		{"kind, hostPID, v1", otherPIDs, selfPID, kindA, kind, true},
		{
			"… systemd", otherPIDs, selfPID,
			"1:name=systemd:" + kindV1 + "/kubelet" + podV1 + idA + "\n0::" + kindV1 + "/system.slice\n" + kindA,
			"4:memory:" + kindV1 + "/init.scope\n0::" + kindV1 + "/init.scope\n", true,
		},
		{"… controller ignored by the runtime", otherPIDs, selfPID, "9:rdma:" + kindV1 + "\n" + kindA, "9:rdma:" + kindV1 + "\n" + kind, true},
		{"kind, shareProcessNamespace, v1", otherPIDs, selfPID, kindA, kindB, false},
		{"kind in a pod, hostPID, v1", otherPIDs, selfPID, inPod + kindV1 + podV1 + idA + "\n", inPod + kindV1 + "\n", true},
		{"k3s in a pod, hostPID, v1", otherPIDs, selfPID, inPod + podV1 + idA + "\n", inPod + "\n", true},
		{"started by hand on kind, v2", otherPIDs, selfPID, "0::/\n", "0::/init.scope\n", true},
		{"started by hand on a node in namespaces, v1", otherPIDs, selfPID, named + "4:memory:/\n0::/\n", named + "4:memory:/\n0::/\n", true},
		// Indistinguishable from the child of an entrypoint.
		{"started by hand on kind, v1", otherPIDs, selfPID, kind, "4:memory:" + kindV1 + "/init.scope\n", false},
		{"process 1 in a container below", otherPIDs, selfPID, "4:memory:/\n", kind, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newProcFixture(t)
			s.setSelf(c.pid, c.pids, c.own)
			if c.first != "" {
				s.addProcess(1, c.first)
			}
			var log bytes.Buffer
			o := s.options()
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			if got := cgroup.New(o).Visible(); got != c.want {
				t.Errorf("Visible: got %v, want %v", got, c.want)
			}
			if logged := strings.Count(log.String(), "\n") == 1; logged == c.want {
				t.Errorf("Visible is %v, got log %q", c.want, log.String())
			}
		})
	}
}

// TestNoProc has no /proc.
func TestNoProc(t *testing.T) {
	s := newProcFixture(t)
	require.NoError(s.t, os.RemoveAll(s.proc))
	l := s.newLocator()
	if l.Visible() {
		t.Error("Visible without /proc: got true, want false")
	}
	s.addProcess(5, cgroupFileA) // after New: visibility never changes
	s.addLogLink(train, idA)
	s.wantOwner(l, 5, noOwner, train)
}

// TestThisMachine checks the machine of the test.
func TestThisMachine(t *testing.T) {
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || pids != nodePIDs {
		t.Skipf("pid namespace %s (%v) is not the initial one", pids, err)
	}
	s := newProcFixture(t)
	s.proc = ""
	l := s.newLocator()
	if !l.Visible() {
		t.Error("Visible in the initial pid namespace: got false, want true")
	}
	s.wantOwner(l, uint32(os.Getpid()), noOwner, train)
}
