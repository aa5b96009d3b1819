package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// run runs a command line in a given environment, and returns the exit status.
func run(ctx context.Context, p Platform, args []string, lookupEnv envLookup, stdout, stderr io.Writer) int {
	reload := make(chan os.Signal, 1)     // one waiting reload stands for all
	signal.Notify(reload, syscall.SIGHUP) // first: an uncaught signal ends the process
	defer signal.Stop(reload)
	o := newOptions(p, lookupEnv)
	name, err := execute(ctx, o, args, lookupEnv, stdout, stderr)
	if err == nil && o.daemon { // without the commands and their flags in memory
		o.reload = reload
		err = cli.Failed(runDaemon(ctx, *o, o.logger(stderr)))
	}
	return cli.Exit(stderr, name, err)
}

// execute parses a command line and runs the command, except for the daemon. Name is the command's.
func execute(ctx context.Context, o *options, args []string, lookupEnv envLookup, stdout, stderr io.Writer) (name string, err error) {
	root := newRootCommand(o, lookupEnv)
	root.SetOut(stdout)
	root.SetErr(stderr)
	named, _, _ := root.Find(args[:min(1, len(args))]) // without a name, the daemon
	root.SetArgs(append([]string{}, normalizeDashes(named.Flags(), args)...))
	command, err := root.ExecuteContextC(ctx)
	return command.CommandPath(), err
}

// newRootCommand returns the daemon's command with all other commands below.
func newRootCommand(o *options, lookupEnv envLookup) *cobra.Command {
	root := &cobra.Command{
		Use:   "podgauge",
		Short: "Run the device plugin and exporter of this node",
		Long: "podgauge is the NVIDIA device plugin and Prometheus exporter of a Kubernetes node.\n" +
			"Without a command, podgauge runs as the daemon of the node.",
		Example:       "  podgauge --state-dir=/var/lib/podgauge\n  podgauge status",
		Args:          maxArgs(0),
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.version {
				return printVersion(c)
			}
			o.daemon = true
			if err := o.kubernetes.connect(lookupEnv); err != nil {
				return err
			}
			return cmp.Or(o.chooseByLabel(c.Context(), c.Flags(), c.ErrOrStderr()), o.complete())
		},
	}
	o.addFlags(root.Flags())
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { printHelp(c) })
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetHelpCommand(newHelpCommand())
	configFolder := ""
	if _, inPod := lookupEnv("KUBERNETES_SERVICE_HOST"); inPod {
		configFolder = mountedFolder
	}
	root.AddCommand(
		newClientCommand(newStatusQuery(configFolder), "status", "Show the devices of this node",
			"Show the devices of a running podgauge: health, reason, action, containers and last incident.",
			"  podgauge status -w\n  kubectl exec -n podgauge ds/podgauge -- podgauge status -o wide"),
		newClientCommand(newIncidentsQuery(configFolder), "incidents", "Show the faults of this node's devices",
			"Show the recorded faults of devices: the affected containers, how the containers ended, and the action that recovers the device.",
			"  podgauge incidents --pod llm-0 --since 24h"),
		newDeviceCommand(), newDriverCommand(),
		newDoctorCommand(o, root.Flags(), lookupEnv), newValidateCommand(o, root.Flags()), newCompletionCommand(),
		&cobra.Command{
			Use: "version", Short: "Print the version", Long: "Print the version of podgauge.", Example: "  podgauge version",
			Args: maxArgs(0), RunE: func(c *cobra.Command, _ []string) error { return printVersion(c) },
		},
	)
	root.InitDefaultHelpCmd()
	root.CompletionOptions.DisableDefaultCmd = true // newCompletionCommand has no PowerShell
	return root
}

func newClientCommand(q *clientCommand, name, short, long, example string) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Long: long, Example: example, Args: maxArgs(0)}
	q.addFlags(c.Flags())
	completeOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := q.complete(c.Flags(), daemonFlags("/proc")); err != nil {
			return err
		}
		q.Terminal = isTerminal(c.OutOrStdout())
		return cli.Failed(q.Print(c.Context(), c.OutOrStdout(), q.render))
	}
	return c
}

func newDoctorCommand(o *options, daemonFlags *pflag.FlagSet, lookupEnv envLookup) *cobra.Command {
	var out cli.Output
	c := &cobra.Command{
		Use: "doctor", Short: "Examine this node, and report problems with impact and fix",
		Long: "Examine this node, and report problems with impact and fix. The command changes nothing.\n" +
			"Accepts the flags of the daemon, too (podgauge --help). In the daemon's container, doctor uses the daemon's own flags.",
		Example: "  kubectl exec -n podgauge ds/podgauge -- podgauge doctor", Args: maxArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.version {
				return printVersion(c)
			}
			o.doctor = true
			if err := cmp.Or(o.chooseByLabel(c.Context(), c.Flags(), c.ErrOrStderr()), o.complete(), out.Check()); err != nil {
				return err
			}
			out.Terminal = isTerminal(c.OutOrStdout())
			return o.runDoctor(c.Context(), out, lookupEnv, c.OutOrStdout())
		},
	}
	shareFlags(c, daemonFlags)
	out.AddFlags(c.Flags())
	completeOutput(c)
	return c
}

func newValidateCommand(o *options, daemonFlags *pflag.FlagSet) *cobra.Command {
	c := &cobra.Command{
		Use: "validate [FILE]", Short: "Check a config, and show the effect on this node",
		Long: "Check a config of the device plugin, and show the effect on this node. The command changes nothing.\n" +
			"The exit status is 0 for a valid config, 1 if this node's devices cannot be listed, and 2 for an invalid config.\n" +
			"Accepts the flags of the daemon, too (podgauge --help).",
		Example: "  podgauge validate config.yaml --mig-strategy=mixed", Args: maxArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.version {
				return printVersion(c)
			}
			if err := o.setConfigFile(c.Flags(), args); err != nil {
				return err
			}
			if err := o.complete(); err != nil {
				return err
			}
			return o.validate(c.Context(), c.OutOrStdout())
		},
	}
	shareFlags(c, daemonFlags)
	return c
}

// shareFlags adds the flags of the daemon to a command.
func shareFlags(c *cobra.Command, daemon *pflag.FlagSet) {
	c.Flags().SetNormalizeFunc(daemon.GetNormalizeFunc())
	c.Flags().AddFlagSet(daemon)
}

func completeOutput(c *cobra.Command) {
	formats := cobra.FixedCompletions(cli.Formats, cobra.ShellCompDirectiveNoFileComp)
	_ = c.RegisterFlagCompletionFunc("output", formats) // the flag exists
}

// newCompletionCommand returns a command that prints a script, which asks podgauge for commands and flags.
func newCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print the completion script of a shell", Long: "Print the completion script of a shell.",
		Example: "  source <(podgauge completion bash)", ValidArgs: []cobra.Completion{"bash", "zsh", "fish"}, Args: maxArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out := c.OutOrStdout()
			switch strings.Join(args, "") {
			case "bash":
				return c.Root().GenBashCompletionV2(out, true)
			case "zsh":
				return c.Root().GenZshCompletion(out)
			case "fish":
				return c.Root().GenFishCompletion(out, true)
			}
			return fmt.Errorf("shell %q: expected bash, zsh or fish", strings.Join(args, ""))
		},
	}
}

// newHelpCommand returns a help command that rejects unknown names.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command", Long: "Show the help of a command.", Example: "  podgauge help status",
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
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

// maxArgs limits the arguments of a command.
func maxArgs(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return fmt.Errorf("unexpected argument %q", args[n])
		}
		return nil
	}
}

func printVersion(c *cobra.Command) error {
	_, err := fmt.Fprintln(c.OutOrStdout(), "podgauge", version)
	return err
}

// printHelp prints what a command does, examples, commands and the command's own flags.
func printHelp(c *cobra.Command) {
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

// ownFlags returns the flags of a command, without those of the daemon and without help.
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
