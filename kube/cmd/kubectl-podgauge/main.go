// Command kubectl-podgauge shows the devices of a whole cluster: kubectl
// podgauge.
//
// The command asks podgauge on each node through the API server, in parallel,
// with a deadline for each node.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/kube/internal/migrate"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

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

func newClient(streams genericiooptions.IOStreams) *client {
	c := &client{flags: genericclioptions.NewConfigFlags(true), streams: streams, isTerminal: isTerminal}
	c.flags.Namespace = nil // -n selects incidents and pods, not podgauge
	c.runInPod = c.execInPod
	return c
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
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
		c.command("status", "Show the devices of all nodes", "  kubectl podgauge status -o wide", c.reportStatus),
		newIncidentsCommand(c),
		c.command("nodes", "Show a line for each node, worst first", "  kubectl podgauge nodes -w", c.reportNodes),
		newPodCommand(c),
		newJobCommand(c),
		newDoctorCommand(c),
		newBundleCommand(c),
		migrate.NewCommand(),
		newRetireCommand(c),
		newUnretireCommand(c),
		c.command("retired", "Show the retired devices of all nodes, the longest first", "  kubectl podgauge retired",
			c.reportRetired),
		newExecCommand(c, "trust NODE GPU", "Return a device to service if its check passes: podgauge device trust",
			"  kubectl podgauge trust node-a 3", 2, "device", "trust"),
		newExecCommand(c, "release NODE", "Release the driver of a node, for a reset of a GPU: podgauge driver release",
			"  kubectl podgauge release node-a", 1, "driver", "release"),
		newExecCommand(c, "resume NODE", "Use the driver of a node again: podgauge driver resume",
			"  kubectl podgauge resume node-a", 1, "driver", "resume"),
		newExecCommand(c, "capture NODE", "Print the driver's answers on a node, with names and serial numbers masked",
			"  kubectl podgauge capture node-a > capture.txt", 1, "capture"),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
				fmt.Fprintln(c.OutOrStdout(), "kubectl-podgauge", version)
			},
		},
	)
	return root
}
