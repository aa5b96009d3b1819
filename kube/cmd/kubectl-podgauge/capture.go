package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

func newCaptureCommand(c *client) *cobra.Command {
	return &cobra.Command{
		Use: "capture NODE", Short: "Print the driver's answers on a node, with names and serial numbers masked",
		Example: "  kubectl podgauge capture node-a > capture.txt", Args: cobra.ExactArgs(1), PreRun: c.waitLonger,
		RunE: func(command *cobra.Command, args []string) error {
			if err := c.connect(); err != nil {
				return err
			}
			return cli.Failed(c.capture(command.Context(), args[0]))
		},
	}
}

// capture prints the output of podgauge capture on a node.
func (c *client) capture(ctx context.Context, node string) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return fmt.Errorf("node %q has no pod of podgauge", node)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	output, err := c.runInPod(ctx, &pods[i], []string{"podgauge", "capture"})
	if err == nil {
		_, err = io.WriteString(c.streams.Out, text.PrintableLines(string(output)))
	}
	return err
}
