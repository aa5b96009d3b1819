package node

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

//go:embed containerd.toml
var containerdConfig string

//go:embed cni.conflist
var networkConfig string

func (n *RealNode) startContainerd(ctx context.Context) error {
	dir, err := programs.Containerd.BuiltDir()
	if err != nil {
		return err
	}
	fill := strings.NewReplacer("@WORK@", n.work, "@IMAGE@", TestImage, "@CONTAINERD@", dir, "@PODS@",
		n.options.Number.podSubnet(), "@SYSTEMD@", strconv.FormatBool(n.cgroups.driver() == "systemd"))
	for file, content := range map[string]string{
		"containerd.toml": containerdConfig, "cni/10-ptp.conflist": networkConfig,
	} {
		content = fill.Replace(content)
		if err := os.WriteFile(n.Path("conf", file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	argv := []string{filepath.Join(dir, "containerd"), "--config", n.Path("conf", "containerd.toml")}
	_, err = n.Start(ctx, "containerd", argv, func(ctx context.Context) error {
		return dial(ctx, "unix", n.RuntimeSocket())
	})
	return err
}
