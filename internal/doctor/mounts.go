package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mountPoints are the points at which this process sees something mounted.
type mountPoints []string

// mountinfoUnescaper has the characters back that mountinfo writes in octal.
var mountinfoUnescaper = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// readMounts reads mountinfo (proc_pid_mountinfo(5)). It is empty where nothing can be read.
func readMounts(proc string) (points mountPoints) {
	text, err := os.ReadFile(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 4 {
			points = append(points, mountinfoUnescaper.Replace(fields[4]))
		}
	}
	return points
}

// covering is the point below which a path is.
func (m mountPoints) covering(path string) (covering string) {
	for _, point := range m {
		if below := point == "/" || path == point || strings.HasPrefix(path, point+"/"); below && len(point) > len(covering) {
			covering = point
		}
	}
	return covering
}

// has tells whether something is mounted at this very path.
func (m mountPoints) has(path string) bool { return slices.Contains(m, path) }

// inContainer tells whether this process is in one: each that the kubelet starts has a file
// mounted for its last words, and other engines leave a mark or set a variable.
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

// isContainerDir tells whether a folder is the container's own, where the node's is meant: nothing
// is mounted above it but the container's root.
func (r *report) isContainerDir(path string) bool {
	if !r.inContainer() || len(r.mounts) == 0 {
		return false
	}
	return r.mounts.covering(resolveExisting(path)) == "/"
}

// resolveExisting is a path without links, or of its folders the last that there is.
func resolveExisting(path string) string {
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return real
		}
		parent := filepath.Dir(path)
		if parent == path {
			return path
		}
		path = parent
	}
}
