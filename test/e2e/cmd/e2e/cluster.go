package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

// repoRoot is the repository root, relative to test/e2e.
const repoRoot = "../.."

// runCluster runs a cluster until ctx is done. Its node has the images of
// podgauge-sim and podgauge-kube under the tag of the chart.
func runCluster(ctx context.Context, out io.Writer) (err error) {
	if err := cluster.CheckRequirements(programs.OfCluster()); err != nil {
		return err
	}
	o := cluster.Options()
	o.LogName, o.Logf = "cluster", func(format string, values ...any) { fmt.Fprintf(out, format+"\n", values...) }
	up, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	n, err := node.Up(up, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Down(context.WithoutCancel(ctx)), n.RemoveLogs()) }()
	c, err := cluster.Up(up, n, "privileged")
	if err != nil {
		return err
	}
	chart, err := filepath.Abs(repoRoot + "/deploy/helm/podgauge")
	if err != nil {
		return err
	}
	objects, err := c.Helm(ctx, "template", "--set=simulate=hardware,kubernetes.events=true", chart)
	if err != nil {
		return err
	}
	var image string
	for _, program := range []string{"podgauge-kube", "podgauge-sim"} {
		if image, err = n.LoadImage(ctx, cluster.Archive(repoRoot, program)); err != nil {
			return err
		}
		match := regexp.MustCompile(`(?m)^ +image: "?([^"\n]+/` + program + `:[^"\n]+)"?$`).FindStringSubmatch(objects)
		if match == nil {
			return fmt.Errorf("the manifest of the chart has no image of %s", program)
		}
		if err := n.TagImage(ctx, image, match[1]); err != nil {
			return err
		}
	}
	if err := n.TagImage(ctx, node.TestImage, pauseImage); err != nil {
		return err
	}
	kubectl, kubectlErr := programs.ControlPlane.BuiltDir()
	helm, helmErr := programs.Helm.BuiltDir()
	bin, binErr := filepath.Abs(repoRoot + "/bin") // of kubectl-podgauge
	if err := errors.Join(kubectlErr, helmErr, binErr); err != nil {
		return err
	}
	fmt.Fprintf(out, instructions, node.Name, programs.ClusterVersion, image, c.Kubeconfig, kubectl+":"+helm+":"+bin)
	<-ctx.Done()
	return nil
}

// pauseImage is the image of deploy/pod.yaml. The test image replaces it, so
// that no registry is needed.
const pauseImage = "registry.k8s.io/pause:3.10"

const instructions = `%s is ready: Kubernetes %s, with the image %s. Ctrl-C removes the cluster. ` +
	`In another terminal, as root:

  export KUBECONFIG=%s PATH=%s:$PATH
and continue with "Install podgauge" in docs/getting-started/tutorial.md.
`
