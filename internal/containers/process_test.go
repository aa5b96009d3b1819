package containers

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestOwnerOfNobody(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.process(5, inOne)
	s.process(6, "0::/system.slice/nvidia-persistenced.service\n")
	s.process(7, "")
	s.process(8, inOne)
	s.must(os.Remove(s.proc + "/8/cgroup"))
	s.process(9, inOne)
	s.must(os.Remove(s.proc + "/9/comm"))
	l := s.locator()
	s.is(l, 5, train, train)
	s.is(l, 5, nobody)
	s.is(l, 5, nobody, nobody) // an allocation that has no name
	for _, pid := range []uint32{0, 6, 7, 8, 9, 10, 1<<32 - 1} {
		s.is(l, pid, nobody, train)
	}
}

// TestOuterContainerComesFirst has a cluster in a pod of a cluster: whoever looks from
// the inner one knows the inner names, and from the outer one the outer.
func TestOuterContainerComesFirst(t *testing.T) {
	s := newStage(t)
	s.process(5, "0::/kubepods/pod"+uid+"/"+idA+"/kubelet/kubepods/pod"+uid2+"/"+idB+"\n")
	s.log(train, idA)
	l := s.locator()
	s.is(l, 5, train, train, infer)
	s.is(l, 5, nobody, infer)

	s.must(os.RemoveAll(s.logs))
	s.must(os.Mkdir(s.logs, 0o755))
	s.log(infer, idB)
	s.is(s.locator(), 5, infer, train, infer)

	s.log(train, idA)
	s.is(s.locator(), 5, train, train, infer) // what is inside cannot pass for another pod
}

// TestNumberThatIsUsedAgain has one process follow another under its number.
func TestNumberThatIsUsedAgain(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.log(infer, idB)
	end := s.alive(5, in(uid, idA))
	l := s.locator()
	s.is(l, 5, train, train, infer)
	end()
	s.is(l, 5, nobody, train, infer) // though its cgroup could still be read
	if len(l.processes) != 0 {
		t.Errorf("remembered are %v", l.processes)
	}
	s.must(os.RemoveAll(s.proc + "/5"))
	s.alive(5, in(uid2, idB))
	s.is(l, 5, infer, train, infer)
}

// TestNumberThatIsUsedAtOnce has the second process there before the first was missed.
func TestNumberThatIsUsedAtOnce(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.log(infer, idB)
	end := s.alive(5, in(uid, idA))
	l := s.locator()
	s.is(l, 5, train, train, infer)
	s.must(os.RemoveAll(s.proc + "/5"))
	s.alive(5, in(uid2, idB))
	end()
	s.is(l, 5, infer, train, infer)
}

// TestProcessThatVanishesBetweenReads has another process get the number after the
// first was opened and before its cgroup is read, which waits for a pipe here.
func TestProcessThatVanishesBetweenReads(t *testing.T) {
	s := newStage(t)
	s.log(infer, idB)
	end := s.alive(5, "")
	s.must(os.Remove(s.proc + "/5/cgroup"))
	s.must(syscall.Mkfifo(s.proc+"/5/cgroup", 0o644))
	wrote := make(chan error)
	go func() {
		pipe, err := os.OpenFile(s.proc+"/5/cgroup", os.O_WRONLY, 0) // it opens when the locator reads
		if err == nil {
			end()
			_, err = pipe.WriteString(in(uid2, idB))
			_ = pipe.Close()
		}
		wrote <- err
	}()
	s.is(s.locator(), 5, nobody, infer)
	s.must(<-wrote)
}

// TestProcessThatIsMoved has a process be seen before the runtime has put it into its
// container's cgroup.
func TestProcessThatIsMoved(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.process(5, "0::/system.slice/containerd.service\n")
	synctest.Test(t, func(*testing.T) {
		l := s.locator()
		s.is(l, 5, nobody, train)
		s.process(5, inOne)
		time.Sleep(recheck - time.Millisecond)
		s.is(l, 5, nobody, train) // read once a second at most
		time.Sleep(time.Millisecond)
		s.is(l, 5, train, train)
		s.process(5, in(uid2, idB))
		time.Sleep(time.Hour)
		s.is(l, 5, train, train) // and once it is known, no more
	})
}

func TestSweepForgets(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.log(infer, idB)
	s.process(5, in(uid, idA))
	s.process(6, in(uid2, idB))
	l := s.locator()
	s.is(l, 5, train, train)
	s.is(l, 6, infer, infer)
	kept := l.processes[6].life
	for range patience {
		l.Sweep()
		s.is(l, 5, train, train)
	}
	if len(l.processes) != 2 || len(l.containers) != 2 {
		t.Errorf("%d processes and %d containers are left within %d flights", len(l.processes), len(l.containers), patience)
	}
	l.Sweep()
	if len(l.processes) != 1 || len(l.containers) != 1 {
		t.Errorf("%d processes and %d containers are left, want those that were asked about", len(l.processes), len(l.containers))
	}
	if _, err := kept.Stat(); err == nil {
		t.Error("the file of a process that was forgotten is open")
	}
	s.is(l, 6, infer, infer)
}

// TestMoreProcessesThanAreKept looks each up, and keeps no more files open than it
// should.
func TestMoreProcessesThanAreKept(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.process(99, inOne)
	for pid := range mostKept + 50 {
		s.must(os.Symlink("99", s.proc+"/"+strconv.Itoa(pid+100)))
	}
	l := s.locator()
	before := openFiles(t)
	for range 2 {
		for pid := range uint32(mostKept + 50) {
			s.is(l, pid+100, train, train)
		}
	}
	if got := len(l.processes); got != mostKept {
		t.Errorf("%d processes are kept", got)
	}
	if got := openFiles(t) - before; got > mostKept {
		t.Errorf("%d files are open", got)
	}
	for range patience + 1 {
		l.Sweep()
	}
	if got := openFiles(t) - before; got > 0 {
		t.Errorf("%d files are open when all is forgotten", got)
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

// TestLongCgroupFile has more lines than are read: the last whole one counts, and half
// of one does not.
func TestLongCgroupFile(t *testing.T) {
	s := newStage(t)
	s.log(train, idA)
	s.log(infer, idB)
	padding := "3:cpu:/" + strings.Repeat("x", mostRead-len("3:cpu:/\n")-len(inOne)) + "\n"
	s.process(5, inOne+padding+in(uid2, idB))
	l := s.locator()
	s.is(l, 5, train, train)
	s.is(l, 5, nobody, infer)

	s.process(6, padding+inOne[:len(inOne)-1]+"/"+idB+"\n")
	s.is(l, 6, nobody, train)
}

// TestProcessesHere reads this machine's own.
func TestProcessesHere(t *testing.T) {
	s := newStage(t)
	s.must(os.RemoveAll(s.proc))
	s.proc = "/proc"
	l := s.locator()
	l.visible = true // whatever it is: this process can be looked up in any case
	s.is(l, uint32(os.Getpid()), nobody, train)
	p := l.processes[uint32(os.Getpid())]
	if p == nil || !l.alive(p) || l.contents("/proc/self/cgroup") == nil {
		t.Errorf("this process is not read: %+v", p)
	}
}
