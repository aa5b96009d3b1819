package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/plugin/response"
)

// runtimeConfigs are the files of NVIDIA's container runtime on the node: of
// the GPU operator, which replaces the node's, and of the node.
var runtimeConfigs = []string{
	"usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
	"etc/nvidia-container-runtime/config.toml",
}

// checkRuntime checks which containers NVIDIA's container runtime gives GPUs
// that the kubelet did not allocate, and whether it accepts the device list
// strategies (https://github.com/NVIDIA/nvidia-container-toolkit,
// api/config/v1).
func checkRuntime(_ context.Context, e *examination) Finding {
	path, settings := e.readRuntimeConfig()
	byEnvironment := settings["accept-nvidia-visible-devices-envvar-when-unprivileged"] != "false"
	accepted := map[response.DeviceListStrategy]bool{
		response.EnvVar:         byEnvironment,
		response.VolumeMounts:   settings["accept-nvidia-visible-devices-as-volume-mounts"] == "true",
		response.CDIAnnotations: true,
		response.CDICRI:         true,
	}
	works := false
	var strategies []string
	for _, s := range e.DeviceListStrategies {
		works = works || accepted[s]
		strategies = append(strategies, string(s))
	}
	switch {
	case e.Driver == nil:
		return skipped("simulated")
	case path == "":
		return skipped("unknown: %s of the node is not visible", runtimeConfigs[1])
	case e.DevicePlugin && !works:
		return failure("%s rejects the device list strategy %s", path, strings.Join(strategies, ", ")).
			because("Unprivileged containers get no GPU.").
			fixedBy("Use the strategy that the file accepts (--device-list-strategy), or CDI.")
	case byEnvironment:
		return warning("%s accepts NVIDIA_VISIBLE_DEVICES of unprivileged containers", path)
	}
	return ok("%s: containers cannot choose GPUs by NVIDIA_VISIBLE_DEVICES", path)
}

// readRuntimeConfig returns the first file that this process sees, with the
// settings before the first TOML table; empty: none.
func (e *examination) readRuntimeConfig() (path string, settings map[string]string) {
	for _, root := range e.HostRoots {
		for _, name := range runtimeConfigs {
			path = filepath.Join(root, name)
			content, err := os.ReadFile(path)
			if err != nil || e.isContainerDir(path) {
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
