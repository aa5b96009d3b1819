package app

import (
	"github.com/podgauge/podgauge/internal/flags"
	"github.com/spf13/cobra"
)

// NewCommand returns the command of a platform, for the tables in docs.
func NewCommand(p Platform) *cobra.Command {
	return newCommand(p, flags.New(func(string) (string, bool) { return "", false }))
}
