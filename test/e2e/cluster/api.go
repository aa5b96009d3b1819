package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// Get decodes an object or list of the API server into v, unless v is nil.
func (c *Cluster) Get(ctx context.Context, path string, v any) error {
	body, err := c.Read(ctx, path)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// Read returns a response of the API server, also as proxy of a pod:
// /api/v1/namespaces/<ns>/pods/<pod>:<port>/proxy/<path>.
func (c *Cluster) Read(ctx context.Context, path string) ([]byte, error) {
	return c.api.Get().RequestURI(path).Do(ctx).Raw()
}

// Kubectl runs kubectl as the administrator and returns the output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.command(ctx, "", programs.ControlPlane, "kubectl", args...)
}

// Apply applies objects in YAML or JSON.
func (c *Cluster) Apply(ctx context.Context, objects string, args ...string) (string, error) {
	return c.command(ctx, objects, programs.ControlPlane, "kubectl",
		append([]string{"apply", "--filename=-"}, args...)...)
}

// Helm runs helm as the administrator and returns the output.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	return c.command(ctx, "", programs.Helm, "helm", args...)
}

// command runs helm or kubectl with caches in the node's folder.
func (c *Cluster) command(ctx context.Context, stdin string, of programs.BuildSpec, name string,
	args ...string,
) (string, error) {
	binary, err := of.Binary(name)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Node.Path("home"))
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(command.Args, " "), err, stdout.String(),
			stderr.String())
	}
	return stdout.String(), nil
}
