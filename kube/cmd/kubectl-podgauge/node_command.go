package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// newNodeCommand returns a command that runs a command of podgauge on a node,
// with the arguments after the node, and prints its output.
func newNodeCommand(c *client, use, short, example string, args int, podgauge ...string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".", Example: example, Args: cobra.ExactArgs(args), PreRun: c.waitLonger,
		RunE: func(command *cobra.Command, args []string) error {
			if err := c.connect(); err != nil {
				return err
			}
			return cli.Failed(c.runOnNode(command.Context(), args[0], append(podgauge, args[1:]...)))
		},
	}
}

// runOnNode prints the output of a command of podgauge on a node.
func (c *client) runOnNode(ctx context.Context, node string, command []string) error {
	p, err := c.podOf(ctx, node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	output, err := c.runInPod(ctx, p, append([]string{"podgauge"}, command...))
	if err != nil && !errors.Is(err, cli.ErrReported) {
		return err
	}
	if _, writeErr := io.WriteString(c.streams.Out, text.PrintableLines(string(output))); writeErr != nil {
		return writeErr
	}
	return err
}

// podOf returns the pod of podgauge on a node.
func (c *client) podOf(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := c.pods(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return nil, fmt.Errorf("node %q has no pod of podgauge", node)
	}
	return &pods[i], nil
}
