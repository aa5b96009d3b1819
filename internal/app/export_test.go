package app

import (
	"context"
	"io"

	"github.com/podgauge/podgauge/internal/flags"
	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/spf13/cobra"
)

// RunWith is Run with a client of a test's API server.
func RunWith(
	ctx context.Context, client *kubeapi.Client, p Platform, args []string, env flags.LookupEnv, stderr io.Writer,
) int {
	o := flags.New(env)
	o.Kubernetes.Client = client
	return run(ctx, newCommand(p, o), args, io.Discard, stderr)
}

// NewCommand returns the command of a platform, for the tables in docs.
func NewCommand(p Platform) *cobra.Command {
	return newCommand(p, flags.New(func(string) (string, bool) { return "", false }))
}
