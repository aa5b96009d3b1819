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

// newNodeCommand returns a command that runs on podgauge's pod of a node, the
// first argument, with the other arguments.
func newNodeCommand(c *client, use, short, example string, args cobra.PositionalArgs,
	run func(ctx context.Context, p *corev1.Pod, args []string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".", Example: example, Args: args,
		RunE: func(command *cobra.Command, args []string) error {
			if err := c.connect(); err != nil {
				return err
			}
			p, err := c.podOf(command.Context(), args[0])
			if err == nil {
				err = run(command.Context(), p, args[1:])
			}
			return cli.Failed(err)
		},
	}
}

// newExecCommand returns a command that prints the output of a command of
// podgauge on a node.
func newExecCommand(c *client, use, short, example string, args int, podgauge ...string) *cobra.Command {
	command := newNodeCommand(c, use, short, example, cobra.ExactArgs(args),
		func(ctx context.Context, p *corev1.Pod, args []string) error {
			return c.printOutput(ctx, p, slices.Concat([]string{"podgauge"}, podgauge, args))
		})
	command.PreRun = c.waitLonger
	return command
}

// printOutput prints the output of a command in a pod.
func (c *client) printOutput(ctx context.Context, p *corev1.Pod, command []string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	output, err := c.runInPod(ctx, p, command)
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
