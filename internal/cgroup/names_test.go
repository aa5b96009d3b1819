package cgroup_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func longOwner(pod int) allocation.Owner {
	return allocation.Owner{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", pod), Container: "c"}
}

func TestOwnerNames(t *testing.T) {
	uncut, cutID, cutPod := longOwner(120), longOwner(130), longOwner(253) // names of links have 251 characters
	invalid := allocation.Owner{Namespace: "m\"l\n", Pod: "\xff\xfe", Container: "ma\\in"}
	elsewhere := allocation.Owner{Namespace: "x", Pod: "train-0", Container: "main"}
	all := []allocation.Owner{side, train, infer}
	only := func(owners ...allocation.Owner) []allocation.Owner { return owners }
	link := func(o allocation.Owner, id string) func(*procFixture) {
		return func(s *procFixture) { s.addLogLink(o, id) }
	}
	dirs := func(o allocation.Owner, uid string, containers ...string) func(*procFixture) {
		return func(s *procFixture) { s.addPodDirs(o, uid, containers...) }
	}
	both := func(steps ...func(*procFixture)) func(*procFixture) {
		return func(s *procFixture) {
			for _, step := range steps {
				step(s)
			}
		}
	}
	file := func(name string) func(*procFixture) {
		return func(s *procFixture) { require.NoError(s.t, os.WriteFile(s.pods+name, nil, 0o644)) }
	}
	noLogs := func(s *procFixture) { require.NoError(s.t, os.RemoveAll(s.logs)) }
	noPods := func(s *procFixture) { require.NoError(s.t, os.RemoveAll(s.pods)) }
	for _, c := range []struct {
		name    string
		prepare func(s *procFixture)
		owners  []allocation.Owner
		want    allocation.Owner
	}{
		{"link", both(link(side, idB), link(train, idA), link(infer, idC)), all, train},
		{"no candidates", link(train, idA), nil, noOwner},
		{"candidate without names", link(train, idA), only(noOwner), noOwner},
		{"link of a container without an allocation", link(side, idA), only(train, infer), noOwner},
		{"link before the only candidate", both(link(side, idA), dirs(train, uid, "main", "side")), only(train), noOwner},
		{"another namespace", link(train, idA), only(elsewhere), noOwner},
		{"link of maximum length", link(uncut, idA), only(uncut), uncut},
		{"link with a truncated id", both(link(cutID, idA), dirs(cutID, uid, "c")), only(cutID), cutID},
		{"link truncated to the pod's name", link(cutPod, idA), only(cutPod), noOwner},
		{"link with the id of another container", link(train, idB), all, noOwner},
		{"pod folder, one candidate", dirs(train, uid, "main", "side"), only(infer, train), train},
		{"pod folder, a candidate with two replicas", dirs(train, uid, "main", "side"), only(train, train), train},
		{"pod folder, two candidates", dirs(train, uid, "main", "side"), all, noOwner},
		{"pod folder, two candidates, one container", dirs(train, uid, "side"), all, side},
		{"pod folder, one container without an allocation", dirs(train, uid, "side"), only(train), noOwner},
		{"pod folder with a file", both(dirs(train, uid, "main"), file("/ml_train-0_"+uid+"/file")), all, train},
		{"empty pod folder", dirs(train, uid), all, noOwner},
		{"pod folder, pod is no candidate", dirs(train, uid, "main"), only(infer), noOwner},
		{"folder of an earlier pod of the name", dirs(train, uid2, "main"), only(train), noOwner},
		{"file instead of a folder", file("/ml_train-0_" + uid), only(train), train},
		{"no link and no folder", both(), all, noOwner},
		{"no folders at all", both(noLogs, noPods), all, noOwner},
		{"links only", both(noPods, link(train, idA)), all, train},
		{"pods' folders only", both(noLogs, dirs(train, uid, "main")), all, train},
		{"link with invalid names", link(invalid, idA), all, noOwner},
		{"link with the invalid names of a candidate", link(invalid, idA), only(invalid), invalid},
		{"invalid entries", func(s *procFixture) {
			for _, name := range []string{
				"-" + idA + ".log", "x-" + idA + ".log", "a_b-" + idA + ".log", "a_b_-" + idA + ".log",
				"a_b_c_d-" + idA + ".log", "\xff", "é\n_\"_'-" + idB + ".log",
			} {
				require.NoError(s.t, os.WriteFile(s.logs+"/"+name, nil, 0o644))
			}
			for _, name := range []string{"_", "ml_", "_train-0_", "a_b_c_", "\xff\xff_", ""} {
				require.NoError(s.t, os.Mkdir(s.pods+"/"+name+uid, 0o755))
			}
			s.addLogLink(train, idA)
		}, all, train},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newProcFixture(t)
			s.addProcess(5, cgroupFileA)
			c.prepare(s)
			l := s.newLocator()
			s.wantOwner(l, 5, c.want, c.owners...)
			s.wantOwner(l, 5, c.want, c.owners...) // cached
		})
	}
}

// TestProcessesWithoutContainer has processes that do not exist or run outside
// of pods.
func TestProcessesWithoutContainer(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addProcess(6, "0::/system.slice/nvidia-persistenced.service\n")
	s.addProcess(7, "")
	s.addProcess(8, cgroupFileA)
	require.NoError(s.t, os.Remove(s.proc+"/8/cgroup"))
	require.NoError(s.t, os.Mkdir(s.proc+"/8/cgroup", 0o755))
	for _, pid := range []uint32{0, 6, 7, 8, 10, 1<<32 - 1} {
		s.wantOwner(s.newLocator(), pid, noOwner, train)
	}
}

// TestMovedProcess moves a process, and reuses the id of an ended process.
func TestMovedProcess(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addLogLink(infer, idB)
	s.addProcess(5, "0::/system.slice/containerd.service\n") // not yet in the container's cgroup
	l := s.newLocator()
	s.wantOwner(l, 5, noOwner, train)
	s.addProcess(5, cgroupFileA)
	s.wantOwner(l, 5, noOwner, train, infer) // read once per collection
	l.Sweep()
	s.wantOwner(l, 5, train, train, infer)
	require.NoError(s.t, os.RemoveAll(s.proc+"/5"))
	s.wantOwner(l, 5, train, train, infer)
	l.Sweep()
	s.wantOwner(l, 5, noOwner, train, infer)
	s.addProcess(5, cgroupFileB)
	l.Sweep()
	s.wantOwner(l, 5, infer, train, infer)
}

func TestResolveOwnerComesFirst(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFileA)
	s.addProcess(6, cgroupFileB)
	s.addProcess(7, cgroupFileB)
	s.addLogLink(side, idA)
	s.addLogLink(infer, idB)
	known, calls := false, []string(nil)
	o := s.options()
	o.ResolveOwner = func(uid, id string) (allocation.Owner, bool) {
		calls = append(calls, uid+"/"+id)
		return train, known
	}
	l := cgroup.New(o)
	s.wantOwner(l, 5, side, train, side) // ResolveOwner fails, so the link decides
	known = true
	s.wantOwner(l, 5, side, train, side) // cached
	s.wantOwner(l, 6, train, train, infer)
	s.wantOwner(l, 7, train, train, infer)
	expect.EqualSlices(t, calls, append(one(uid, idA), uid2+"/"+idB), "calls")
}

// TestOneSearchPerCollection has several processes in a container without a
// name.
func TestOneSearchPerCollection(t *testing.T) {
	s := newProcFixture(t)
	searches := 0
	o := s.options()
	o.ResolveOwner = func(string, string) (allocation.Owner, bool) {
		searches++
		return noOwner, false
	}
	l := cgroup.New(o)
	for collection := range 3 {
		for pid := range uint32(5) {
			s.addProcess(pid, cgroupFileA)
			s.wantOwner(l, pid, noOwner, train)
		}
		if searches != collection+1 {
			t.Errorf("collection %d: got %d searches, want one per collection", collection, searches)
		}
		l.Sweep()
	}
}

// TestNamesAppear adds folders and links later. They are found a second after
// the previous listing, and stay known while a process uses the container.
func TestNamesAppear(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, cgroupFileA)
	s.addProcess(6, cgroupFileB)
	require.NoError(s.t, os.Remove(s.logs))
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := s.options()
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		l := cgroup.New(o)
		for range 100 {
			s.wantOwner(l, 5, noOwner, train)
			l.Sweep()
			time.Sleep(time.Second)
		}
		if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), s.logs) {
			t.Errorf("missing folder: got log %q, want one line with the folder", log.String())
		}
		s.addPodDirs(train, uid, "main", "side")
		s.wantOwner(l, 5, train, train) // by the pod
		l.Sweep()
		require.NoError(s.t, os.Mkdir(s.logs, 0o755))
		s.addLogLink(side, idA)
		s.addLogLink(infer, idB)
		time.Sleep(time.Second - time.Millisecond)
		s.wantOwner(l, 5, train, train)
		s.wantOwner(l, 6, noOwner, infer)
		l.Sweep()
		time.Sleep(time.Millisecond)
		s.wantOwner(l, 5, noOwner, train) // the link corrects the owner
		s.wantOwner(l, 5, side, train, side)
		s.wantOwner(l, 6, infer, infer) // from the same listing

		require.NoError(s.t, os.RemoveAll(s.logs))
		for range 10 {
			time.Sleep(time.Hour)
			s.wantOwner(l, 5, side, train, side)
			l.Sweep()
		}
		s.wantOwner(l, 6, noOwner, infer) // forgotten
	})
}

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
			expect.Equal(t, cgroup.New(o).Visible(), c.want, "Visible")
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
