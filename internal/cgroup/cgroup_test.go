package cgroup

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// cgroupFormats are cgroup files of known runtimes and kubelets, each with a
// source.
var cgroupFormats = []struct {
	name, from string
	file       string
	want       []containerRef
}{
	{
		"v2, systemd, containerd", "containerd internal/cri/server/helpers.go getCgroupsPath; runc " +
			"systemd/common.go getUnitName",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSlice + "/cri-containerd-" + idA +
			".scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"v2, systemd, guaranteed", "kubelet cm/pod_container_manager_linux.go GetPodContainerName",
		"0::/kubepods.slice/kubepods-pod" + uidSlice + "/cri-containerd-" + idA + ".scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"v2, cgroupfs", "kubelet cm/cgroup_manager_linux.go ToCgroupfs; containerd getCgroupsPath",
		"0::/kubepods/besteffort/pod" + uid + "/" + idA + "\n",
		[]containerRef{{uid, idA}},
	},
	{
		"v1, all controllers", "github.com/Qard/container-info test/fixtures (GKE)",
		"11:devices:/kubepods/besteffort/pod" + uid2 + "/" + idB + "\n10:perf_event:/kubepods/besteffort/" +
			"pod" + uid2 + "/" + idB +
			"\n1:name=systemd:/kubepods/besteffort/pod" + uid2 + "/" + idB + "\n0::/\n",
		[]containerRef{{uid2, idB}},
	},
	{
		"v1, controller ignored by the runtime, runtime's own cgroup in v2",
		"spiffe/spire testdata/systemd_crio_cgroups_pid_in_pod.txt",
		"12:hugetlb:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidSlice + "/crio-" + idA +
			".scope\n3:rdma:/\n1:name=systemd:/system.slice/crio.service\n0::/system.slice/crio.service\n",
		[]containerRef{{uid, idA}},
	},
	{
		"systemd's slice with a runtime without systemd support",
		"elastic/apm#508; containerd getCgroupsPath joins with colons",
		"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod" + uidSlice + ":cri-containerd:" + idA +
			"\n",
		[]containerRef{{uid, idA}},
	},
	{
		"the same, and a cgroup below", "as above",
		"0::/kubelet-kubepods-pod" + uidSlice + ":cri-containerd:" + idA + "/init.scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"CRI-O, systemd", "cri-o internal/config/cgmgr/systemd_linux.go",
		"0::/kubepods.slice/kubepods-pod" + uidSlice + "/crio-" + idA + ".scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"CRI-O with crun", "crun.1: run.oci.systemd.subgroup defaults to container on cgroup v2",
		"0::/kubepods.slice/kubepods-pod" + uidSlice + "/crio-" + idA + ".scope/container\n",
		[]containerRef{{uid, idA}},
	},
	{
		"CRI-O, cgroupfs", "cri-o internal/config/cgmgr/cgroupfs_linux.go",
		"0::/kubepods/pod" + uid + "/crio-" + idA + "\n",
		[]containerRef{{uid, idA}},
	},
	{
		"CRI-O's conmon, systemd", "cri-o internal/config/cgmgr: conmon_cgroup = pod",
		"0::/kubepods.slice/kubepods-pod" + uidSlice + "/crio-conmon-" + idA + ".scope\n",
		nil,
	},
	{"CRI-O's conmon, cgroupfs", "as above", "0::/kubepods/pod" + uid + "/crio-conmon-" + idA + "\n", nil},
	{
		"cri-dockerd, systemd", "moby cmd/dockerd/daemon_systemd_unix.go: <parent>:docker:",
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidSlice + "/docker-" + idA +
			".scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"static pod, cgroupfs", "kubelet config/common.go: the UID is a hash without dashes",
		"0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/" + idA + "\n",
		[]containerRef{{"0123456789abcdef0123456789abcdef", idA}},
	},
	{
		"static pod, systemd", "as above",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/" +
			"cri-containerd-" + idA + ".scope\n",
		[]containerRef{{"0123456789abcdef0123456789abcdef", idA}},
	},
	{
		"kubelet --cgroup-root, as in kind", "kind's kubelet: --cgroup-root=/kubelet",
		"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/" +
			"kubelet-kubepods-besteffort-pod" + uidSlice + "/" +
			"cri-containerd-" + idA + ".scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"kind, seen from its machine", "spiffe/spire testdata/cgroups_pid_in_kind_pod.txt",
		"13:name=systemd:/docker/" + idC + "/kubepods/besteffort/pod" + uid + "/" + idA + "\n0::/docker/" + idC +
			"/system.slice/containerd.service\n",
		[]containerRef{{uid, idA}},
	},
	{
		"seen from another pod's cgroup namespace", "cgroup_namespaces(7)",
		"0::/../../kubepods-besteffort-pod" + uidSlice + "/" +
			"cri-containerd-" + idA + ".scope\n",
		[]containerRef{{uid, idA}},
	},
	{
		"the same, cgroupfs and another class", "cgroup_namespaces(7)",
		"0::/../../../burstable/pod" + uid + "/" + idA + "\n",
		[]containerRef{{uid, idA}},
	},
	{
		"container of the reader's own pod, without the pod", "spiffe/spire testdata/cgroups_pid_in_crio_pod.txt",
		"0::/../crio-" + idA + ".scope\n",
		nil,
	},
	{
		"docker in a pod", "moby daemon: cgroup parent /docker",
		"4:memory:/kubepods/burstable/pod" + uid + "/" + idA + "/docker/" + idB + "\n",
		[]containerRef{{uid, idA}},
	},
	{
		"systemd in a pod", "systemd.io/CONTAINER_INTERFACE",
		"0::/kubepods.slice/kubepods-pod" + uidSlice + "/" +
			"cri-containerd-" + idA + ".scope/system.slice/cuda.service\n",
		[]containerRef{{uid, idA}},
	},
	{
		"a cluster in a pod of a cluster", "kind in Prow: kubernetes/test-infra",
		"5:rdma:/kubepods/burstable/pod" + uid + "/" + idA + "\n4:memory:/kubepods/burstable/" +
			"pod" + uid + "/" + idA + "/docker/" + idC +
			"/kubelet/kubepods/pod" + uid2 + "/" + idB + "\n",
		[]containerRef{{uid, idA}, {uid2, idB}},
	},
	{
		"process outlives its cgroup", "cgroup-v2.rst: \" (deleted)\" is appended",
		"0::/kubepods/pod" + uid + "/" + idA + " (deleted)\n",
		[]containerRef{{uid, idA}},
	},
	{"no end of line", "–", "0::/kubepods/pod" + uid + "/" + idA, []containerRef{{uid, idA}}},
	{"a pod's own cgroup", "–", "0::/kubepods/burstable/pod" + uid + "\n", nil},
	{"the node's services", "–", "1:name=systemd:/system.slice/kubelet.service\n0::/init.scope\n", nil},
	{
		"docker without Kubernetes", "neuvector share/system/cgroup_test.go",
		"9:blkio:/system.slice/docker-" + idA + ".scope\n", nil,
	},
	{"an id of 63 digits", "–", "0::/kubepods/pod" + uid + "/" + idA[1:] + "\n", nil},
	{"an id of 65 digits", "–", "0::/kubepods/pod" + uid + "/0" + idA + "\n", nil},
	{"an id in capitals", "–", "0::/kubepods/pod" + uid + "/" + strings.ToUpper(idA) + "\n", nil},
	{"truncated UID", "–", "0::/kubepods/pod" + uid[1:] + "/" + idA + "\n", nil},
	{"UID with other separators", "–", "0::/kubepods/pod" + strings.ReplaceAll(uid, "-", ".") + "/" + idA + "\n", nil},
	{"segment that ends like a pod", "–", "0::/kubepods/tripod" + uid + "/" + idA + "\n", nil},
	{"the same with systemd", "–", "0::/kubepods.slice/kubepods-tripod" + uidSlice + "/" +
		"cri-containerd-" + idA + ".scope\n", nil},
	{"systemd's name for a pod without systemd", "–", "0::/kubepods-pod" + uid + "/" + idA + "\n", nil},
	{"segment between pod and container", "–", "0::/kubepods/pod" + uid + "/other/" + idA + "\n", nil},
	{"empty", "–", "", nil},
	{"no path", "–", "0:\n::\n:\n\n", nil},
}

func TestContainerRefs(t *testing.T) {
	for _, f := range cgroupFormats {
		if got := containerRefs([]byte(f.file)); !slices.Equal(got, f.want) {
			t.Errorf("%s (%s): got %v, want %v", f.name, f.from, got, f.want)
		}
	}
}

func FuzzContainerRefs(f *testing.F) {
	for _, form := range cgroupFormats {
		f.Add([]byte(form.file))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		refs := containerRefs(file)
		for _, p := range refs {
			if !bytes.Equal(podUID([]byte("pod"+p.uid)), []byte(p.uid)) || strings.Contains(p.uid, "_") ||
				!bytes.Equal(containerID([]byte(p.id)), []byte(p.id)) {
				t.Errorf("got invalid %+v", p)
			}
			whole := bytes.ReplaceAll(file, []byte("_"), []byte("-"))
			if !bytes.Contains(whole, []byte("pod"+p.uid)) || !bytes.Contains(file, []byte(p.id)) {
				t.Errorf("got %+v, which is not in %q", p, file)
			}
		}
		for _, prefix := range []string{"/kubelet.slice", "/../..", "/docker/" + idC} {
			if got := containerRefs(prefixPaths(prefix, file)); !slices.Equal(got, refs) {
				t.Errorf("below %s: got %v, want %v", prefix, got, refs)
			}
		}
	})
}

// prefixPaths inserts a prefix before the paths of a cgroup file.
func prefixPaths(prefix string, file []byte) (prefixed []byte) {
	for line := range bytes.Lines(file) {
		_, path := splitLine(line)
		if !bytes.HasPrefix(path, []byte("/")) {
			prefixed = append(prefixed, line...)
			continue
		}
		start := bytes.IndexByte(line, ':') + 1
		start += bytes.IndexByte(line[start:], ':') + 1
		prefixed = append(append(append(prefixed, line[:start]...), prefix...), line[start:]...)
	}
	return prefixed
}
