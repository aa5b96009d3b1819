package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// runtimeConfigs are the files of NVIDIA's container runtime on the node: of the GPU operator, which replaces the node's, and of the node.
var runtimeConfigs = []string{
	"usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
	"etc/nvidia-container-runtime/config.toml",
}

// checkRuntime checks which containers NVIDIA's container runtime gives GPUs that the kubelet did not allocate, and whether it accepts
// the device list strategies (https://github.com/NVIDIA/nvidia-container-toolkit, api/config/v1).
func checkRuntime(_ context.Context, r *report) Finding {
	path, settings := r.readRuntimeConfig()
	byEnvironment := settings["accept-nvidia-visible-devices-envvar-when-unprivileged"] != "false"
	accepted := map[string]bool{
		"envvar": byEnvironment, "volume-mounts": settings["accept-nvidia-visible-devices-as-volume-mounts"] == "true",
		"cdi-annotations": true, "cdi-cri": true,
	}
	works := slices.ContainsFunc(r.DeviceListStrategies, func(strategy string) bool { return accepted[strategy] })
	switch {
	case r.Driver == nil:
		return skipped("simulated")
	case path == "":
		return skipped("unknown: %s of the node is not visible", runtimeConfigs[1])
	case r.DevicePlugin && !works:
		return failure(path+" rejects the device list strategy "+strings.Join(r.DeviceListStrategies, ", "),
			"Use the strategy that the file accepts (--device-list-strategy), or CDI.").
			because("Unprivileged containers get no GPU.")
	case byEnvironment:
		return warning(path+" accepts NVIDIA_VISIBLE_DEVICES of unprivileged containers",
			"Use CDI or volume-mounts (--device-list-strategy), and set accept-nvidia-visible-devices-envvar-when-unprivileged = false.")
	}
	return ok("%s: containers cannot choose GPUs by NVIDIA_VISIBLE_DEVICES", path)
}

// readRuntimeConfig returns the first file that this process sees, with the settings before the first TOML table; empty: none.
func (r *report) readRuntimeConfig() (path string, settings map[string]string) {
	for _, root := range r.HostRoots {
		for _, name := range runtimeConfigs {
			path = filepath.Join(root, name)
			content, err := os.ReadFile(path)
			if err != nil || r.isContainerDir(path) {
				continue
			}
			settings = map[string]string{}
			for line := range strings.Lines(string(content)) {
				line, _, _ = strings.Cut(line, "#")
				if strings.HasPrefix(strings.TrimSpace(line), "[") {
					break
				}
				key, value, _ := strings.Cut(line, "=")
				settings[strings.Trim(key, " \t\"'")] = strings.TrimSpace(value)
			}
			return path, settings
		}
	}
	return "", nil
}
