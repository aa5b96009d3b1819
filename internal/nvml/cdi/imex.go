package cdi

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// FindIMEXChannels splits channels by whether the node has the device node. Like NVIDIA's plugin, it also looks in this process's /dev:
// a runtime puts the nodes there.
func FindIMEXChannels(devRoot string, ids []int) (present, missing []int) {
	for _, id := range ids {
		node := imexChannelNode(id)
		if isCharDevice(filepath.Join("/", devRoot, node)) || isCharDevice(node) {
			present = append(present, id)
		} else {
			missing = append(missing, id)
		}
	}
	return present, missing
}

func imexChannelNode(id int) string {
	return fmt.Sprintf("/dev/nvidia-caps-imex-channels/channel%d", id)
}

func isCharDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}
