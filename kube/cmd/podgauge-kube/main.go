// Command podgauge-kube is podgauge's client of the Kubernetes API server. It
// follows podgauge on all nodes, and reports to the API server; podgauge on the
// node has no token.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(status)
}

// run runs a command line, and returns the exit status.
func run(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	root := &cobra.Command{
		Use: "podgauge-kube", Short: "Report the GPUs of a cluster to its API server",
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true, // one line for each error
	}
	options := &cli.LogOptions{}
	options.AddFlags(root.PersistentFlags())
	newLog := func() (*slog.Logger, error) {
		if err := options.Check(); err != nil {
			return nil, err
		}
		log := options.Logger(stderr)
		klog.SetSlogLogger(log) // of client-go
		return log, nil
	}
	root.AddCommand(
		newControllerCommand(newLog),
		newNodeCommand(newLog),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
				fmt.Fprintln(c.OutOrStdout(), "podgauge-kube", version)
			},
		},
	)
	root.SetArgs(append([]string{}, args...))
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Exit(stderr, "podgauge-kube", root.ExecuteContext(ctx))
}
