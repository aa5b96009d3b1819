package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// MaxArgs limits the arguments of a command.
func MaxArgs(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return fmt.Errorf("unexpected argument %q", args[n])
		}
		return nil
	}
}

// CompleteOutput completes the values of --output in a shell.
func CompleteOutput(c *cobra.Command) {
	formats := cobra.FixedCompletions(Formats, cobra.ShellCompDirectiveNoFileComp)
	_ = c.RegisterFlagCompletionFunc("output", formats) // the flag exists
}

// NewCompletionCommand returns a command that prints a script, which asks
// podgauge for commands and flags.
func NewCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print the completion script of a shell",
		Long:      "Print the completion script of a shell.",
		Example:   "  source <(podgauge completion bash)",
		ValidArgs: []cobra.Completion{"bash", "zsh", "fish"}, Args: MaxArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out := c.OutOrStdout()
			switch shell := strings.Join(args, ""); shell {
			case "bash":
				return c.Root().GenBashCompletionV2(out, true)
			case "zsh":
				return c.Root().GenZshCompletion(out)
			case "fish":
				return c.Root().GenFishCompletion(out, true)
			default:
				return fmt.Errorf("shell %q: expected bash, zsh or fish", shell)
			}
		},
	}
}

// NewHelpCommand returns a help command that rejects unknown names.
func NewHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		Long: "Show the help of a command.", Example: "  podgauge help status",
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) (
			names []cobra.Completion, _ cobra.ShellCompDirective,
		) {
			for _, command := range c.Root().Commands() {
				names = append(names, command.Name())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			command, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("unknown command %q", strings.Join(args, " "))
			}
			return command.Help()
		},
	}
}

// PrintHelp prints what a command does, examples, commands and the command's
// own flags.
func PrintHelp(c *cobra.Command, _ []string) {
	w := c.OutOrStdout()
	fmt.Fprintf(w, "%s\n", strings.TrimSpace(c.Long))
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	fmt.Fprintf(w, "\nUsage:\n  %s\n", c.UseLine())
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nCommands:\n")
		for _, command := range c.Commands() {
			fmt.Fprintf(w, "  %-11s %s\n", command.Name(), command.Short)
		}
	}
	if flags := ownFlags(c); flags.HasFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", flags.FlagUsages())
	}
}

// ownFlags returns the flags of a command, without those of the root command
// and without help.
func ownFlags(c *cobra.Command) *pflag.FlagSet {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && (c == c.Root() || c.Root().Flags().Lookup(f.Name) != f) {
			own.AddFlag(f)
		}
	})
	return own
}

// Exit statuses, as of kubectl.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
)

// failure is an error of a command that began.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Failed marks the error of a command that began: exit status 1. All other
// errors are of the command line: exit status 2.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// ErrReported is the failure of a command whose output has the problems.
var ErrReported = Failed(errors.New("problems found"))

// Exit prints an error as one line, and returns the exit status.
func Exit(stderr io.Writer, prefix string, err error) int {
	if err == nil {
		return ExitOK
	}
	if !errors.Is(err, ErrReported) {
		fmt.Fprintf(stderr, "%s: %s\n", prefix, text.Printable(err.Error()))
	}
	if _, began := errors.AsType[failure](err); began {
		return ExitError
	}
	return ExitUsage
}
