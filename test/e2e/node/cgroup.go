package node

import (
	"errors"
	"os"
	"slices"
	"syscall"
)

// nodeCgroups are the cgroups of a node, and what follows from their kind. The
// cgroups contain exactly the processes of the node, so no file of process ids
// is necessary.
type nodeCgroups interface {
	// driver returns the kubelet's cgroupDriver, and root its cgroupRoot.
	driver() string
	root() string
	// setUpVariables returns variables of inside.sh.
	setUpVariables() []string
	// namespaces returns the clone flags of the node's namespaces.
	namespaces() uintptr
	// initArgs returns the arguments of testcmd, the first program. All
	// processes of the node end with that program.
	initArgs() []string

	create() error
	// addThread moves the calling thread into the cgroups, if threads can move
	// alone. Processes that the thread starts later are in the cgroups as well.
	addThread() error
	// addProcess puts the process to start into the cgroups, if addThread does
	// not.
	addProcess(*syscall.SysProcAttr)
	// remove removes the cgroups, and fails if they have processes.
	remove() error

	// dirs returns the existing cgroups, outermost first.
	dirs() []string
	// hasName reports whether the folder is the cgroup of a container with this
	// id, or of a pod with this uid after "pod".
	hasName(dir, name string) bool
}

// newNodeCgroups returns the cgroups of a node, by what this machine has.
func newNodeCgroups(number Number) (nodeCgroups, error) {
	if v2, found := newCgroupV2(number); found {
		return v2, nil
	}
	v1, err := newCgroupV1(number)
	if err == nil && len(v1) == 0 {
		err = errors.New("this machine has neither cgroup v2 with systemd nor hierarchies of cgroup v1: boot with " +
			"systemd, or run `make e2e VM=1`")
	}
	return v1, err
}

// pidsOf returns the processes in the cgroups except this process: its nsenter
// thread may be in the cgroups.
func pidsOf(c nodeCgroups) []int {
	var all []int
	for _, dir := range c.dirs() {
		all = append(all, pidsIn(dir)...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(pid int) bool { return pid == os.Getpid() })
}

// findCgroup returns the node's first cgroup with the name.
func findCgroup(c nodeCgroups, name string) (dir string, found bool) {
	for _, dir := range c.dirs() {
		if c.hasName(dir, name) {
			return dir, true
		}
	}
	return "", false
}
