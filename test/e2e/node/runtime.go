package node

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/containerd"
	"github.com/podgauge/podgauge/test/e2e/image"
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
		if dir, err = containerd.BinaryDir(); err != nil {
			return err
		}
		program, config = filepath.Join(dir, "containerd"), containerd2Config
	}
	fill := strings.NewReplacer("@WORK@", n.work, "@IMAGE@", TestImage, "@CONTAINERD@", dir, "@PODS@", n.options.Number.podSubnet())
	for file, content := range map[string]string{"containerd.toml": config, "cni/10-ptp.conflist": networkConfig} {
		content = fill.Replace(content)
		if err := os.WriteFile(n.path("conf", file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	process, err := n.Exec("containerd", []string{program, "--config", n.path("conf", "containerd.toml")})
	if err != nil {
		return err
	}
	return Until(ctx, "containerd answers", func(ctx context.Context) error {
		if err := process.Alive(); err != nil {
			return StopRetrying(err)
		}
		return dial(ctx, "unix", n.runtimeSocket())
	})
}

// runtimeSocket returns the machine's path of containerd's socket.
func (n *RealNode) runtimeSocket() string { return n.path("containerd", "containerd.sock") }

// TestImage is the image of all containers, including pod sandboxes.
const TestImage = "local.test/box:1"

func (n *RealNode) loadImage(ctx context.Context) error {
	program, err := os.ReadFile(n.path("box"))
	if err != nil {
		return err
	}
	archive := n.path("box.tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	testcmd := image.Image{Name: TestImage, Program: program, Path: "/box", Args: []string{"pause"}}
	if err := errors.Join(testcmd.Write(f), f.Close()); err != nil {
		return err
	}
	return n.LoadImage(ctx, archive)
}

// LoadImage imports the images of an OCI archive into containerd.
func (n *RealNode) LoadImage(ctx context.Context, archive string) error {
	archive, err := filepath.Abs(archive) // the node has a different working folder
	if err != nil {
		return err
	}
	_, err = n.Shell(ctx, fmt.Sprintf("ctr -a %s -n k8s.io images import %s", n.runtimeSocket(), archive))
	return err
}

// TagImage adds a name to an image in containerd.
func (n *RealNode) TagImage(ctx context.Context, image, name string) error {
	_, err := n.Shell(ctx, fmt.Sprintf("ctr -a %s -n k8s.io images tag --force %s %s", n.runtimeSocket(), image, name))
	return err
}
