// Command kubectl-podgauge shows the devices of a whole cluster: kubectl
// podgauge.
//
// The command asks podgauge on each node through the API server, in parallel,
// with a deadline for each node.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// version is set by the Makefile.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	c := newClient(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	status := run(ctx, c, os.Args[1:])
	stop()
	os.Exit(status)
}

// run runs a command line, and returns the exit status: 1 also if a node
// failed.
func run(ctx context.Context, c *client, args []string) int {
	root := newRootCommand(c)
	root.SetArgs(append([]string{}, args...))
	root.SetOut(c.streams.Out)
	root.SetErr(c.streams.ErrOut)
	return cli.Exit(c.streams.ErrOut, "error", root.ExecuteContext(ctx))
}

func newRootCommand(c *client) *cobra.Command {
	root := &cobra.Command{
		Use: "kubectl-podgauge", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl podgauge"},
		Short:         "Show the GPUs of a cluster",
		Long:          "Show the GPUs of a cluster. The plugin queries podgauge on each node through the API server.",
		Example:       "  kubectl podgauge nodes\n  kubectl podgauge pod llm-0 -n serving",
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true, // one line for each error
	}
	c.flags.AddFlags(root.PersistentFlags())
	c.addFlags(root.PersistentFlags())
	root.AddCommand(
		c.command("status", "Show the devices of all nodes", "  kubectl podgauge status -o wide", newStatusReport()),
		c.command("incidents", "Show the faults of all nodes' devices, newest first",
			"  kubectl podgauge incidents -n serving --since 24h", newIncidentsReport()),
		c.command("nodes", "Show a line for each node, worst first", "  kubectl podgauge nodes -w", newNodesReport()),
		c.command("pod NAME", "Show the devices of a pod, and the faults that affected the pod, also after its end",
			"  kubectl podgauge pod llm-0 -n serving --prometheus=http://prometheus:9090", newPodReport()),
		c.command("doctor", "Examine all nodes with podgauge doctor, and show the problems",
			"  kubectl podgauge doctor -o wide", newDoctorReport()),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
				fmt.Fprintln(c.OutOrStdout(), "kubectl-podgauge", version)
			},
		},
	)
	return root
}

// command returns a command that prints a report.
func (c *client) command(use, short, example string, r clusterReport) *cobra.Command {
	var out cli.Output
	command := &cobra.Command{
		Use: use, Short: short, Long: short + ".", Example: example,
		Args: cobra.ExactArgs(r.args()),
	}
	out.AddFlags(command.Flags())
	out.AddWatchFlag(command.Flags())
	r.addFlags(command.Flags())
	formats := cobra.FixedCompletions(cli.Formats, cobra.ShellCompDirectiveNoFileComp)
	_ = command.RegisterFlagCompletionFunc("output", formats) // the flag exists
	command.RunE = func(command *cobra.Command, args []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		if err := c.connect(); err != nil {
			return err
		}
		if err := r.complete(c, command.Flags(), args); err != nil {
			return err
		}
		out.Terminal = c.isTerminal(c.streams.Out)
		c.progress = c.isTerminal(c.streams.ErrOut) && (!out.Watch || !out.Terminal)
		return cli.Failed(out.Print(command.Context(), c.streams.Out, func(ctx context.Context) (string, error) {
			return c.render(ctx, r, out)
		}))
	}
	return command
}
