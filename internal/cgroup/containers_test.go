package cgroup_test

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

const (
	podDir   = "/kubepods/burstable/pod" + uid
	podSlice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSlice
	scopeA   = "/cri-containerd-" + idA + ".scope\n"
	dirA     = "/" + idA + "\n"
	hash     = "0123456789abcdef0123456789abcdef" // UID of a static pod
)

var inA = one(uid, idA)

// cgroupFormats are cgroup files of known runtimes and kubelets, each with its
// source and the containers that it names.
var cgroupFormats = []struct {
	name, from, file string
	want             []string // "<uid>/<id>"
}{
	{"v2, systemd", "runc getUnitName", "0::" + podSlice + scopeA, inA},
	{"v2, guaranteed", "kubelet GetPodContainerName", "0::/kubepods.slice/kubepods-pod" + uidSlice + scopeA, inA},
	{"v2, cgroupfs", "kubelet ToCgroupfs", "0::/kubepods/besteffort/pod" + uid + dirA, inA},
	{
		"v1, all controllers", "github.com/Qard/container-info test/fixtures (GKE)",
		"11:devices:" + podDir + "/" + idB + "\n10:perf_event:" + podDir + "/" + idB + "\n1:name=systemd:" + podDir + "/" +
			idB + "\n0::/\n", one(uid, idB),
	},
	{
		"v1, a controller that the runtime ignores", "spiffe/spire testdata/systemd_crio_cgroups_pid_in_pod.txt",
		"12:hugetlb:" + podSlice + "/crio-" + idA + ".scope\n3:rdma:/\n0::/system.slice/crio.service\n", inA,
	},
	{
		"systemd's slice, runtime without systemd", "elastic/apm#508",
		"1:name=systemd:/system.slice/containerd.service/kubepods-pod" + uidSlice + ":cri-containerd:" + idA + "\n",
		inA,
	},
	{"the same, and a cgroup below", "as above", "0::/kubelet-kubepods-pod" + uidSlice + ":cri-containerd:" + idA + "/init.scope\n", inA},
	{"CRI-O, systemd", "cri-o cgmgr/systemd_linux.go", "0::" + podSlice + "/crio-" + idA + ".scope\n", inA},
	{"CRI-O with crun", "crun.1: run.oci.systemd.subgroup", "0::" + podSlice + "/crio-" + idA + ".scope/container\n", inA},
	{"CRI-O, cgroupfs", "cri-o cgmgr/cgroupfs_linux.go", "0::" + podDir + "/crio-" + idA + "\n", inA},
	{"conmon, systemd", "cri-o: conmon_cgroup = pod", "0::" + podSlice + "/crio-conmon-" + idA + ".scope\n", nil},
	{"conmon, cgroupfs", "as above", "0::" + podDir + "/crio-conmon-" + idA + "\n", nil},
	{"cri-dockerd", "moby daemon_systemd_unix.go", "0::" + podSlice + "/docker-" + idA + ".scope\n", inA},
	{"static pod", "kubelet config/common.go", "0::/kubepods/burstable/pod" + hash + dirA, one(hash, idA)},
	{"static pod, systemd", "as above", "0::/kubepods.slice/kubepods-pod" + hash + ".slice/cri-containerd-" + idA + ".scope\n", one(hash, idA)},
	{"kind", "kubelet --cgroup-root=/kubelet", "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uidSlice + scopeA, inA},
	{
		"kind, from its machine", "spiffe/spire testdata/cgroups_pid_in_kind_pod.txt",
		"13:name=systemd:/docker/" + idC + podDir + "/" + idA + "\n0::/docker/" + idC + "/system.slice/containerd.service\n",
		inA,
	},
	{"another pod's cgroup namespace", "cgroup_namespaces(7)", "0::/../../kubepods-besteffort-pod" + uidSlice + scopeA, inA},
	{"the same, cgroupfs", "as above", "0::/../../../burstable/pod" + uid + dirA, inA},
	{"the reader's pod, without the pod", "spiffe/spire testdata/cgroups_pid_in_crio_pod.txt", "0::/../crio-" + idA + ".scope\n", nil},
	{"docker in a pod", "moby: cgroup parent /docker", "4:memory:" + podDir + "/" + idA + "/docker/" + idB + "\n", inA},
	{"systemd in a pod", "systemd.io/CONTAINER_INTERFACE", "0::" + podSlice + "/cri-containerd-" + idA + ".scope/system.slice/cuda.service\n", inA},
	{"a cluster in a pod", "kind in Prow", "5:rdma:" + podDir + "/" + idA + "\n4:memory:" + podDir + "/" + idA +
		"/docker/" + idC + "/kubelet/kubepods/pod" + uid2 + "/" + idB + "\n", append(one(uid, idA), uid2+"/"+idB)},
	{"process outlives its cgroup", "cgroup-v2.rst", "0::" + podDir + "/" + idA + " (deleted)\n", inA},
	{"no end of line", "–", "0::" + podDir + "/" + idA, inA},
	{"a pod's own cgroup", "–", "0::" + podDir + "\n", nil},
	{"the node's services", "–", "1:name=systemd:/system.slice/kubelet.service\n0::/init.scope\n", nil},
	{"docker without Kubernetes", "–", "9:blkio:/system.slice/docker-" + idA + ".scope\n", nil},
	{"an id of 63 digits", "–", "0::" + podDir + "/" + idA[1:] + "\n", nil},
	{"an id of 65 digits", "–", "0::" + podDir + "/0" + idA + "\n", nil},
	{"an id in capitals", "–", "0::" + podDir + "/" + strings.ToUpper(idA) + "\n", nil},
	{"truncated UID", "–", "0::/kubepods/pod" + uid[1:] + dirA, nil},
	{"UID with other separators", "–", "0::/kubepods/pod" + strings.ReplaceAll(uid, "-", ".") + dirA, nil},
	{"segment that ends like a pod", "–", "0::/kubepods/tripod" + uid + dirA, nil},
	{"the same with systemd", "–", "0::/kubepods-tripod" + uidSlice + scopeA, nil},
	{"systemd's name without systemd", "–", "0::/kubepods-pod" + uid + dirA, nil},
	{"segment between pod and container", "–", "0::" + podDir + "/other/" + idA + "\n", nil},
	{"empty", "–", "", nil},
	{"no path", "–", "0:\n::\n:\n\n", nil},
}

func one(uid, id string) []string { return []string{uid + "/" + id} }

// containersOf returns the containers that a Locator finds in a cgroup file.
func (s *procFixture) containersOf(file string) (found []string) {
	s.t.Helper()
	o := s.options()
	o.ResolveOwner = func(uid, id string) (allocation.Owner, bool) {
		found = append(found, uid+"/"+id)
		return allocation.Owner{}, false
	}
	s.addProcess(5, file)
	s.wantOwner(cgroup.New(o), 5, noOwner, train)
	return found
}

func TestContainersOfProcess(t *testing.T) {
	s := newProcFixture(t)
	for _, f := range cgroupFormats {
		if got := s.containersOf(f.file); !slices.Equal(got, f.want) {
			t.Errorf("%s (%s): got %v, want %v", f.name, f.from, got, f.want)
		}
	}
}

var containerPattern = regexp.MustCompile(
	`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})/[0-9a-f]{64}$`)

// FuzzContainerRefs requires that each container is in the file, and found
// below any prefix of the paths.
func FuzzContainerRefs(f *testing.F) {
	for _, form := range cgroupFormats {
		f.Add([]byte(form.file))
	}
	s := newProcFixture(f)
	f.Fuzz(func(t *testing.T, file []byte) {
		s.t = t
		file = file[:min(len(file), 4<<10)] // with each prefix below the limit of a file
		found := s.containersOf(string(file))
		for _, container := range found {
			uid, id, _ := strings.Cut(container, "/")
			whole := strings.ReplaceAll(string(file), "_", "-")
			if !containerPattern.MatchString(container) || !strings.Contains(whole, "pod"+uid) ||
				!bytes.Contains(file, []byte(id)) {
				t.Errorf("got %s, which is not in %q", container, file)
			}
		}
		for _, prefix := range []string{"/kubelet.slice", "/../..", "/docker/" + idC} {
			prefixed := prefixPaths(prefix, string(file))
			if got := s.containersOf(prefixed); len(prefixed) < 16<<10 && !slices.Equal(got, found) {
				t.Errorf("below %s: got %v, want %v", prefix, got, found)
			}
		}
	})
}

// prefixPaths inserts a prefix before the absolute paths of a cgroup file.
func prefixPaths(prefix, file string) (prefixed string) {
	for line := range strings.Lines(file) {
		number, rest, _ := strings.Cut(line, ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if strings.HasPrefix(path, "/") {
			line = number + ":" + controllers + ":" + prefix + path
		}
		prefixed += line
	}
	return prefixed
}

// TestLongCgroupFile has a file of more than 16 KiB. A truncated line does not
// count.
func TestLongCgroupFile(t *testing.T) {
	s := newProcFixture(t)
	padding := "3:cpu:/" + strings.Repeat("x", 16<<10-len("3:cpu:/\n")-len(cgroupFileA)) + "\n"
	for file, want := range map[string][]string{
		cgroupFileA + padding + cgroupFileB:                           one(uid, idA),
		padding + cgroupFileA[:len(cgroupFileA)-1] + "/" + idB + "\n": nil,
	} {
		expect.EqualSlices(t, s.containersOf(file), want)
	}
}

// TestImitatedContainer has a process in a container with a writable cgroup, in
// a cgroup named like a container of another pod.
func TestImitatedContainer(t *testing.T) {
	const slice, slice2 = "2c48913c_b29f_11e7_9350_020968147796.slice", "74c13223_5a00_11e9_b385_42010a80018d.slice"
	for name, path := range map[string]string{
		"cgroupfs, containerd": "/kubepods/burstable/pod" + uid + "/" + idA,
		"cgroupfs, CRI-O":      "/kubepods/pod" + uid + "/crio-" + idA,
		"systemd, containerd":  "/kubepods.slice/kubepods-pod" + slice + "/cri-containerd-" + idA + ".scope",
		"systemd, CRI-O":       "/kubepods.slice/kubepods-pod" + slice + "/crio-" + idA + ".scope/container",
		"systemd's slice":      "/kubelet-kubepods-pod" + slice + ":cri-containerd:" + idA,
	} {
		for _, nested := range []string{
			"/pod" + uid2 + "/" + idB, "/pod" + uid2 + "/crio-" + idB,
			"/a-pod" + slice2 + "/cri-containerd-" + idB + ".scope", "/kubepods-pod" + slice2 + ":cri-containerd:" + idB,
		} {
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

// TestOuterContainerComesFirst has a cluster in a pod of a cluster. The names
// belong to the cluster of the reader.
func TestOuterContainerComesFirst(t *testing.T) {
	s := newProcFixture(t)
	s.addProcess(5, "0::/kubepods/pod"+uid+"/"+idA+"/kubelet/kubepods/pod"+uid2+"/"+idB+"\n")
	s.addLogLink(infer, idB)
	s.wantOwner(s.newLocator(), 5, infer, train, infer)
	s.addLogLink(train, idA)
	s.wantOwner(s.newLocator(), 5, train, train, infer) // an inner container cannot imitate another pod
	require.NoError(s.t, os.Remove(s.logs+"/infer_web_main-"+idB+".log"))
	s.wantOwner(s.newLocator(), 5, noOwner, infer)
}

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
