package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mounts are the points at which this process sees something mounted.
type mounts []string

// unescaped has the characters back that mountinfo writes in octal.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// readMounts reads mountinfo (proc_pid_mountinfo(5)). It is empty where nothing can be read.
func readMounts(proc string) (all mounts) {
	text, err := os.ReadFile(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 4 {
			all = append(all, unescaped.Replace(fields[4]))
		}
	}
	return all
}

// of is the point below which a path is.
func (all mounts) of(path string) (on string) {
	for _, point := range all {
		if below := point == "/" || path == point || strings.HasPrefix(path, point+"/"); below && len(point) > len(on) {
			on = point
		}
	}
	return on
}

// has tells whether something is mounted at this very path.
func (all mounts) has(path string) bool { return slices.Contains(all, path) }

// inContainer tells whether this process is in one: each that the kubelet starts has a file
// mounted for its last words, and other engines leave a mark or set a variable.
func (e *examination) inContainer() bool {
	if e.mounts.has("/dev/termination-log") {
		return true
	}
	for _, variable := range []string{"KUBERNETES_SERVICE_HOST", "container"} {
		if value, _ := e.LookupEnv(variable); value != "" {
			return true
		}
	}
	return false
}

// ownFolder tells whether a folder is the container's own, where the node's is meant: nothing
// is mounted above it but the container's root.
func (e *examination) ownFolder(path string) bool {
	if !e.inContainer() || len(e.mounts) == 0 {
		return false
	}
	return e.mounts.of(existing(path)) == "/"
}

// existing is a path without links, or of its folders the last that there is.
func existing(path string) string {
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return real
		}
		up := filepath.Dir(path)
		if up == path {
			return path
		}
		path = up
	}
}
