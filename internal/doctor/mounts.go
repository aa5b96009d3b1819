package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mountPoints are the mount points of this process.
type mountPoints []string

// mountinfoUnescaper decodes the octal escapes of mountinfo.
var mountinfoUnescaper = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// readMounts reads mountinfo (proc_pid_mountinfo(5)). An unreadable file returns nil.
func readMounts(proc string) (points mountPoints) {
	text, err := os.ReadFile(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, mountinfoUnescaper.Replace(fields[4]))
		}
	}
	return points
}

// covering returns the mount point of a path.
func (m mountPoints) covering(path string) (covering string) {
	for _, point := range m {
		if below := point == "/" || path == point || strings.HasPrefix(path, point+"/"); below && len(point) > len(covering) {
			covering = point
		}
	}
	return covering
}

// has reports whether a path is a mount point.
func (m mountPoints) has(path string) bool { return slices.Contains(m, path) }

// inContainer reports whether this process runs in a container: the kubelet mounts a termination log, other engines set a variable.
func (r *report) inContainer() bool {
	if r.mounts.has("/dev/termination-log") {
		return true
	}
	for _, variable := range []string{"KUBERNETES_SERVICE_HOST", "container"} {
		if value, _ := r.LookupEnv(variable); value != "" {
			return true
		}
	}
	return false
}

// isContainerDir reports whether a folder belongs to the container: only the container's root is mounted above it.
func (r *report) isContainerDir(path string) bool {
	return r.inContainer() && len(r.mounts) > 0 && r.mounts.covering(resolveExisting(path)) == "/"
}

// resolveExisting returns the path or the nearest existing parent, without links.
func resolveExisting(path string) string {
	for {
		resolved, err := filepath.EvalSymlinks(path)
		if err == nil {
			return resolved
		}
		parent := filepath.Dir(path)
		if parent == path {
			return path
		}
		path = parent
	}
}
