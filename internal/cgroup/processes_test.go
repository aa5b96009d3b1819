package cgroup

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
)

func TestNoOwner(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addProcess(5, cgroupFileA)
	s.addProcess(6, "0::/system.slice/nvidia-persistenced.service\n")
	s.addProcess(7, "")
	s.addProcess(8, cgroupFileA)
	s.must(os.Remove(s.proc + "/8/cgroup"))
	s.addProcess(9, cgroupFileA)
	s.must(os.Remove(s.proc + "/9/comm"))
	l := s.newLocator()
	s.wantOwner(l, 5, train, train)
	s.wantOwner(l, 5, noOwner)
	s.wantOwner(l, 5, noOwner, noOwner) // an unknown owner
	for _, pid := range []uint32{0, 6, 7, 8, 9, 10, 1<<32 - 1} {
		s.wantOwner(l, pid, noOwner, train)
	}
}

// TestOuterContainerComesFirst has a cluster in a pod of a cluster. The names
// belong to the cluster of the reader.
func TestOuterContainerComesFirst(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, "0::/kubepods/pod"+uid+"/"+idA+"/kubelet/kubepods/pod"+uid2+"/"+idB+"\n")
	s.addLogLink(train, idA)
	l := s.newLocator()
	s.wantOwner(l, 5, train, train, infer)
	s.wantOwner(l, 5, noOwner, infer)

	s.must(os.RemoveAll(s.logs))
	s.must(os.Mkdir(s.logs, 0o755))
	s.addLogLink(infer, idB)
	s.wantOwner(s.newLocator(), 5, infer, train, infer)

	s.addLogLink(train, idA)
	s.wantOwner(s.newLocator(), 5, train, train, infer) // an inner container cannot imitate another pod
}

// TestImitatedContainer has a process in a container with a writable cgroup, in
// a cgroup named like a container of another pod.
func TestImitatedContainer(t *testing.T) {
	const slice, slice2 = "2c48913c_b29f_11e7_9350_020968147796.slice", "74c13223_5a00_11e9_b385_42010a80018d.slice"
	outer := map[string]string{
		"cgroupfs, containerd": "/kubepods/burstable/pod" + uid + "/" + idA,
		"cgroupfs, CRI-O":      "/kubepods/pod" + uid + "/crio-" + idA,
		"systemd, containerd":  "/kubepods.slice/kubepods-pod" + slice + "/cri-containerd-" + idA + ".scope",
		"systemd, CRI-O":       "/kubepods.slice/kubepods-pod" + slice + "/crio-" + idA + ".scope/container",
		"systemd's slice":      "/kubelet-kubepods-pod" + slice + ":cri-containerd:" + idA,
	}
	inner := []string{
		"/pod" + uid2 + "/" + idB, "/pod" + uid2 + "/crio-" + idB,
		"/a-pod" + slice2 + "/cri-containerd-" + idB + ".scope",
		"/kubepods-pod" + slice2 + ":cri-containerd:" + idB,
	}
	for name, path := range outer {
		for _, nested := range inner {
			for _, file := range []string{
				"0::" + path + nested + "\n",
				"4:memory:" + path + nested + "\n3:rdma:" + path + "\n0::/\n",
				"4:memory:" + path + "\n3:rdma:" + path + nested + "\n",
			} {
				s := newProcFixture(t)
				s.addProcess(5, file)
				s.addPodDirs(train, uid, "main", "side")
				s.addLogLink(infer, idB)
				s.wantOwner(s.newLocator(), 5, noOwner, infer)
				s.wantOwner(s.newLocator(), 5, noOwner, infer, train, side) // the pod alone is known
				s.wantOwner(s.newLocator(), 5, train, infer, train)
				s.addLogLink(train, idA)
				s.wantOwner(s.newLocator(), 5, noOwner, infer, side)
				if t.Failed() {
					t.Fatalf("%s: %s", name, file)
				}
			}
		}
	}
}

// TestPIDReuse starts a process with the pid of an ended process.
func TestPIDReuse(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addLogLink(infer, idB)
	end := s.addLiveProcess(5, cgroupFile(uid, idA))
	l := s.newLocator()
	s.wantOwner(l, 5, train, train, infer)
	end()
	s.wantOwner(l, 5, noOwner, train, infer) // although the cgroup file still exists
	if len(l.processes) != 0 {
		t.Errorf("cached processes: got %v, want none", l.processes)
	}
	s.must(os.RemoveAll(s.proc + "/5"))
	s.addLiveProcess(5, cgroupFile(uid2, idB))
	s.wantOwner(l, 5, infer, train, infer)
}

// TestImmediatePIDReuse reuses the pid between two lookups.
func TestImmediatePIDReuse(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addLogLink(infer, idB)
	end := s.addLiveProcess(5, cgroupFile(uid, idA))
	l := s.newLocator()
	s.wantOwner(l, 5, train, train, infer)
	s.must(os.RemoveAll(s.proc + "/5"))
	s.addLiveProcess(5, cgroupFile(uid2, idB))
	end()
	s.wantOwner(l, 5, infer, train, infer)
}

// TestPIDReuseDuringRead reuses the pid after the open of comm and before the
// read of the cgroup, which waits for a pipe.
func TestPIDReuseDuringRead(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(infer, idB)
	end := s.addLiveProcess(5, "")
	s.must(os.Remove(s.proc + "/5/cgroup"))
	s.must(syscall.Mkfifo(s.proc+"/5/cgroup", 0o644))
	wrote := make(chan error)
	go func() {
		pipe, err := os.OpenFile(s.proc+"/5/cgroup", os.O_WRONLY, 0) // opens with the Locator's read
		if err == nil {
			end()
			_, err = pipe.WriteString(cgroupFile(uid2, idB))
			_ = pipe.Close()
		}
		wrote <- err
	}()
	s.wantOwner(s.newLocator(), 5, noOwner, infer)
	s.must(<-wrote)
}

// TestMovedProcess looks up a process before the runtime moves it to the
// container's cgroup.
func TestMovedProcess(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addProcess(5, "0::/system.slice/containerd.service\n")
	bubble.Test(t, func(*testing.T) {
		l := s.newLocator()
		s.wantOwner(l, 5, noOwner, train)
		s.addProcess(5, cgroupFileA)
		time.Sleep(recheckInterval - time.Millisecond)
		s.wantOwner(l, 5, noOwner, train) // read at most once a second
		time.Sleep(time.Millisecond)
		s.wantOwner(l, 5, train, train)
		s.addProcess(5, cgroupFile(uid2, idB))
		time.Sleep(time.Hour)
		s.wantOwner(l, 5, train, train) // resolved for good
	})
}

func TestSweep(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addLogLink(infer, idB)
	s.addProcess(5, cgroupFile(uid, idA))
	s.addProcess(6, cgroupFile(uid2, idB))
	l := s.newLocator()
	s.wantOwner(l, 5, train, train)
	s.wantOwner(l, 6, infer, infer)
	kept := l.processes[6].comm
	for range maxIdleCollections {
		l.Sweep()
		s.wantOwner(l, 5, train, train)
	}
	if len(l.processes) != 2 || len(l.containers) != 2 {
		t.Errorf("got %d processes and %d containers after %d collections, want 2 each", len(l.processes),
			len(l.containers), maxIdleCollections)
	}
	l.Sweep()
	if len(l.processes) != 1 || len(l.containers) != 1 {
		t.Errorf("got %d processes and %d containers, want 1 each", len(l.processes), len(l.containers))
	}
	if _, err := kept.Stat(); err == nil {
		t.Error("the file of an evicted process is open")
	}
	s.wantOwner(l, 6, infer, infer)
}

// TestMaxProcesses checks the limit of cached processes and open files.
func TestMaxProcesses(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addProcess(99, cgroupFileA)
	for pid := range maxProcesses + 50 {
		s.must(os.Symlink("99", s.proc+"/"+strconv.Itoa(pid+100)))
	}
	l := s.newLocator()
	before := openFiles(t)
	for range 2 {
		for pid := range uint32(maxProcesses + 50) {
			s.wantOwner(l, pid+100, train, train)
		}
	}
	if got := len(l.processes); got != maxProcesses {
		t.Errorf("cached processes: got %d, want maxProcesses", got)
	}
	if got := openFiles(t) - before; got > maxProcesses {
		t.Errorf("open files: got %d, want at most maxProcesses", got)
	}
	for range maxIdleCollections + 1 {
		l.Sweep()
	}
	if got := openFiles(t) - before; got > 0 {
		t.Errorf("open files after the eviction of all processes: got %d, want 0", got)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// TestLongCgroupFile has a file of more than maxCgroupBytes. A truncated line
// does not count.
func TestLongCgroupFile(t *testing.T) {
	s := newProcFixture(t)
	s.addLogLink(train, idA)
	s.addLogLink(infer, idB)
	padding := "3:cpu:/" + strings.Repeat("x", maxCgroupBytes-len("3:cpu:/\n")-len(cgroupFileA)) + "\n"
	s.addProcess(5, cgroupFileA+padding+cgroupFile(uid2, idB))
	l := s.newLocator()
	s.wantOwner(l, 5, train, train)
	s.wantOwner(l, 5, noOwner, infer)

	s.addProcess(6, padding+cgroupFileA[:len(cgroupFileA)-1]+"/"+idB+"\n")
	s.wantOwner(l, 6, noOwner, train)
}

// TestOwnProcess reads this process from /proc.
func TestOwnProcess(t *testing.T) {
	s := newProcFixture(t)
	s.must(os.RemoveAll(s.proc))
	s.proc = "/proc"
	l := s.newLocator()
	l.visible = true // this process is visible in any pid namespace
	s.wantOwner(l, uint32(os.Getpid()), noOwner, train)
	p := l.processes[uint32(os.Getpid())]
	if p == nil || !l.isAlive(p) || len(readLines("/proc/self/cgroup")) == 0 {
		t.Errorf("process: got %+v, want a live process with a cgroup file", p)
	}
}
