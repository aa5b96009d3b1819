package node

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

//go:embed containerd.toml
var containerdConfig string

//go:embed containerd2.toml
var containerd2Config string

//go:embed cni.conflist
var networkConfig string

func (n *RealNode) startContainerd(ctx context.Context) error {
	program, config, dir := "containerd", containerdConfig, ""
	if n.options.Containerd2 {
		var err error
		if dir, err = programs.Containerd.BuiltDir(); err != nil {
			return err
		}
		program, config = filepath.Join(dir, "containerd"), containerd2Config
	}
	fill := strings.NewReplacer("@WORK@", n.work, "@IMAGE@", TestImage, "@CONTAINERD@", dir, "@PODS@",
		n.options.Number.podSubnet())
	for file, content := range map[string]string{"containerd.toml": config, "cni/10-ptp.conflist": networkConfig} {
		content = fill.Replace(content)
		if err := os.WriteFile(n.path("conf", file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	_, err := n.Start(ctx, "containerd", []string{program, "--config", n.path("conf", "containerd.toml")},
		func(ctx context.Context) error {
			return dial(ctx, "unix", n.RuntimeSocket())
		})
	return err
}

// RuntimeSocket returns the machine's path of containerd's socket.
func (n *RealNode) RuntimeSocket() string { return n.path("containerd", "containerd.sock") }
