package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/client"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/flags"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/validate"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Run runs a command line in an environment, and returns the exit status.
func Run(ctx context.Context, p Platform, args []string, lookupEnv flags.LookupEnv, stdout, stderr io.Writer) int {
	return run(ctx, newCommand(p, flags.New(lookupEnv)), args, stdout, stderr)
}

func run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetOut(stdout)
	root.SetErr(stderr)
	named, _, _ := root.Find(args[:min(1, len(args))]) // without a name, the daemon
	root.SetArgs(append([]string{}, cli.NormalizeDashes(named.Flags(), args)...))
	command, err := root.ExecuteContextC(ctx)
	return cli.Exit(stderr, command.CommandPath(), err)
}

// newCommand returns the daemon's command with all other commands below.
func newCommand(p Platform, options *flags.Options) *cobra.Command {
	o := commandOptions{options, p}
	root := &cobra.Command{
		Use:   "podgauge",
		Short: "Run the device plugin and exporter of this node",
		Long: "podgauge is the NVIDIA device plugin and Prometheus exporter of a Kubernetes node.\n" +
			"Without a command, podgauge runs as the daemon of the node.",
		Example:       "  podgauge --state-dir=/var/lib/podgauge\n  podgauge status",
		Args:          cli.MaxArgs(0),
		SilenceErrors: true, SilenceUsage: true,
	}
	o.AddFlags(root.Flags(), p.AddFlags)
	root.RunE = o.command(o.runDaemon)
	root.SetHelpFunc(cli.PrintHelp)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.FlagError(err) })
	root.SetHelpCommand(cli.NewHelpCommand())
	configFolder := ""
	if _, inPod := o.LookupEnv("KUBERNETES_SERVICE_HOST"); inPod {
		configFolder = client.MountedFolder
	}
	root.AddCommand(
		client.NewStatusCommand(configFolder), client.NewIncidentsCommand(configFolder),
		client.NewDeviceCommand(), client.NewDriverCommand(),
		newDoctorCommand(o, root.Flags()), newCaptureCommand(o, root.Flags()), newValidateCommand(o, root.Flags()),
		cli.NewCompletionCommand(),
		&cobra.Command{
			Use: "version", Short: "Print the version", Long: "Print the version of podgauge.",
			Example: "  podgauge version", Args: cli.MaxArgs(0), RunE: printVersion,
		},
	)
	root.InitDefaultHelpCmd()
	root.CompletionOptions.DisableDefaultCmd = true // cli.NewCompletionCommand has no PowerShell
	return root
}

func printVersion(c *cobra.Command, _ []string) error {
	_, err := fmt.Fprintln(c.OutOrStdout(), "podgauge", version)
	return err
}

// commandOptions are the options of the daemon, which doctor and validate share.
type commandOptions struct {
	*flags.Options
	platform Platform
}

// command returns a command with the daemon's flag --version.
func (o commandOptions) command(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		if o.Version {
			return printVersion(c, args)
		}
		return run(c, args)
	}
}

// runDaemon checks the command line, listeners, IMEX channels and platform, and
// runs the daemon until the context is done.
func (o commandOptions) runDaemon(c *cobra.Command, _ []string) error {
	reload := make(chan os.Signal, 1)     // one waiting reload stands for all
	signal.Notify(reload, syscall.SIGHUP) // first: an uncaught signal ends the process
	defer signal.Stop(reload)
	if err := o.Complete(); err != nil {
		return err
	}
	return cli.Failed(o.serve(c.Context(), reload, o.Logger(c.ErrOrStderr())))
}

// serve assembles the daemon, and runs it until ctx is done.
func (o commandOptions) serve(ctx context.Context, reload <-chan os.Signal, log *slog.Logger) error {
	l, err := o.Web.Listen()
	if err != nil {
		return err
	}
	if _, err := rules.IMEXChannels(o.Loaded.Settings); err != nil {
		return err
	}
	m, err := o.openPlatform(log)
	if err != nil {
		return err
	}
	defer m.close()
	a, err := newApp(o.Options, m, reload, log)
	if err != nil {
		return err
	}
	o.Loaded.Report(log)
	log.Info("podgauge starting", "version", version, "listen", l.Main.Addr().String(), "kubelet_dir", m.KubeletDir,
		"simulated", m.Simulated)
	return a.run(ctx, l)
}

// shareFlags adds the flags of the daemon to a command.
func shareFlags(c *cobra.Command, daemon *pflag.FlagSet) {
	c.Flags().SetNormalizeFunc(daemon.GetNormalizeFunc())
	c.Flags().AddFlagSet(daemon)
}

func newValidateCommand(o commandOptions, daemonFlags *pflag.FlagSet) *cobra.Command {
	c := &cobra.Command{
		Use: "validate [FILE]", Short: "Check a config, and show the effect on this node",
		Long: "Check a config of the device plugin, and show the effect on this node. The command changes nothing.\n" +
			"The exit status is 0 for a valid config, 1 if this node's devices cannot be listed, and 2 for an " +
			"invalid config.\nAccepts the flags of the daemon, too (podgauge --help).",
		Example: "  podgauge validate config.yaml --mig-strategy=mixed", Args: cli.MaxArgs(1),
		RunE: o.command(func(c *cobra.Command, args []string) error {
			if err := o.setConfigFile(c.Flags(), args); err != nil {
				return err
			}
			if err := o.Complete(); err != nil {
				return err
			}
			if err := validate.Settings(&o.Loaded, c.OutOrStdout()); err != nil {
				return err
			}
			err := o.onPlatform(func(m *Hardware) error {
				return validate.Preview(c.Context(), m, o.Loaded.Settings, c.OutOrStdout())
			})
			if err != nil {
				return cli.Failed(fmt.Errorf("the effect on this node is unknown: %w", err))
			}
			return nil
		}),
	}
	shareFlags(c, daemonFlags)
	return c
}

// setConfigFile reads the FILE of validate.
func (o commandOptions) setConfigFile(f *pflag.FlagSet, args []string) error {
	if len(args) > 0 {
		if f.Changed("config-file") {
			return errors.New("FILE and --config-file: set only one of them")
		}
		if err := f.Set("config-file", args[0]); err != nil {
			return err
		}
	}
	location, err := o.Builder.Location()
	if err == nil && location.File == "" {
		err = errors.New("no config: set FILE, --config-file or CONFIG_FILE")
	}
	return err
}

func newDoctorCommand(o commandOptions, daemonFlags *pflag.FlagSet) *cobra.Command {
	var out cli.Output
	c := &cobra.Command{
		Use: "doctor", Short: "Examine this node, and report problems with impact and fix",
		Long: "Examine this node, and report problems with impact and fix. The command changes nothing.\n" +
			"Accepts the flags of the daemon, too (podgauge --help). In the daemon's container, doctor uses the " +
			"daemon's own flags.",
		Example: "  kubectl exec -n podgauge ds/podgauge -- podgauge doctor", Args: cli.MaxArgs(0),
		RunE: o.command(func(c *cobra.Command, _ []string) error {
			err := cmp.Or(o.CompleteWithoutConfig(), out.Check())
			if err != nil {
				return err
			}
			out.Terminal = client.IsTerminal(c.OutOrStdout())
			return cli.Failed(o.onPlatform(func(m *Hardware) error {
				return o.runDoctor(c.Context(), m, out, c.OutOrStdout())
			}))
		}),
	}
	shareFlags(c, daemonFlags)
	out.AddFlags(c.Flags())
	cli.CompleteOutput(c)
	return c
}

// runDoctor examines the node, and prints the report.
func (o commandOptions) runDoctor(ctx context.Context, m *Hardware, out cli.Output, stdout io.Writer) error {
	doctorOptions := o.doctorOptions()
	if m.Library != nil {
		doctorOptions.Driver = struct {
			device.Backend
			DriverLibrary
		}{m.Backend, m.Library}
	}
	report := doctor.NewReport(o.Hostname, version, doctor.Run(ctx, doctorOptions))
	if ctx.Err() != nil { // the findings are incomplete
		return errors.New("interrupted")
	}
	page, err := report.Render(out)
	if err == nil {
		_, err = io.WriteString(stdout, text.PrintableLines(page))
	}
	if err == nil && report.Failures > 0 {
		return cli.ErrReported
	}
	return err
}

// doctorOptions returns the options of an examination.
func (o commandOptions) doctorOptions() doctor.Options {
	s := o.Loaded.Settings
	source, _ := o.Builder.Location() // checked
	opts := doctor.Options{
		Config: source.File, UnknownKeys: text.Each(o.Loaded.UnknownKeys, config.UnknownKey.String),
		ConfigErr: o.ConfigErr, RetiredErr: config.CheckRetired(o.Health.RetiredFile),
		DevRoot: rules.DevRoot(s), InjectsDeviceNodes: s.PassDeviceSpecs || rules.UsesCDI(s),
		HostRoots: []string{s.ContainerDriverRoot, "/"}, DeviceListStrategies: s.DeviceListStrategy,
		KubeletDir: o.KubeletDir, DevicePluginDir: o.DevicePluginDir, DevicePlugin: o.DevicePlugin,
		PodLogsDir: o.PodLogsDir, KernelLog: o.Health.KernelLog, StateDir: o.Health.StateDir,
		ExpectedGPUs:     s.ExpectedGPUs,
		ProcessesVisible: cgroup.New(cgroup.Options{Log: slog.New(slog.DiscardHandler)}).Visible(),
		LookupEnv:        o.LookupEnv, ReadyURL: o.Web.ReadyURL(),
		DCGMCountersFile: o.Metrics.DCGMCountersFile, DCGMCounters: o.Metrics.DCGM,
	}
	if rules.UsesCDI(s) {
		opts.CDIDir = cdi.DefaultDir
	}
	return opts
}

func newCaptureCommand(o commandOptions, daemonFlags *pflag.FlagSet) *cobra.Command {
	c := &cobra.Command{
		Use: "capture", Short: "Print the driver's answers on this node, with names and serial numbers masked",
		Long: "Print NVML's answers to the calls of podgauge, and the times of the calls. UUIDs, serial numbers and " +
			"names of\nhosts and pods are masked. The command takes ten seconds and changes nothing.\n" +
			"Accepts the flags of the daemon, too (podgauge --help).",
		Example: "  podgauge capture > capture.txt", Args: cli.MaxArgs(0),
		RunE: o.command(func(c *cobra.Command, _ []string) error {
			if err := o.CompleteWithoutConfig(); err != nil {
				return err
			}
			return cli.Failed(o.onPlatform(func(m *Hardware) error {
				if m.Capture == nil {
					return errors.New("the driver is simulated")
				}
				return m.Capture(c.Context(), version, c.OutOrStdout())
			}))
		}),
	}
	shareFlags(c, daemonFlags)
	return c
}

// onPlatform runs a task of a command on the platform, without the daemon's
// log.
func (o commandOptions) onPlatform(task func(*Hardware) error) error {
	m, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer m.close()
	return task(m)
}

// openPlatform opens the platform with the settings and flags.
func (o commandOptions) openPlatform(log *slog.Logger) (*Hardware, error) {
	s := o.Loaded.Settings
	m, err := o.platform.Open(OpenOptions{
		DriverRoots: []string{s.ContainerDriverRoot, s.DriverRoot}, PerLink: o.Metrics.ReadsNVLinks(),
		Reads: o.Metrics.Reads, CheckFabricManager: o.Health.FabricManager, Log: log,
	})
	if err != nil {
		return nil, err
	}
	if m.KubeletDir != "" {
		o.OwnPod = "" // a simulated kubelet does not list the pod
	}
	m.KubeletDir = cmp.Or(m.KubeletDir, o.KubeletDir)
	m.DevicePluginDir = cmp.Or(m.DevicePluginDir, o.DevicePluginDir)
	return m, nil
}
