package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/kube/internal/condition"
	"github.com/podgauge/podgauge/kube/internal/events"
	"github.com/podgauge/podgauge/kube/internal/nodes"
	"github.com/podgauge/podgauge/kube/internal/taints"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The limits of requests to the API server: the failure of a rack makes
// hundreds of writes at once.
const (
	requestsPerSecond = 50
	requestsBurst     = 100
)

// controllerOptions are the flags of controller.
type controllerOptions struct {
	nodes      nodes.Options
	tls        rest.TLSClientConfig
	events     bool
	condition  condition.Settings
	taints     bool
	effects    map[string]string // of taints
	election   election
	kubeconfig string
	listen     string

	// Of the checked flags.
	conditions   []condition.Kind
	taintEffects taints.Effects
}

// newControllerCommand returns the command of the controller. newLog is called
// after the flags are parsed.
func newControllerCommand(newLog func() (*slog.Logger, error)) *cobra.Command {
	o := &controllerOptions{}
	command := &cobra.Command{
		Use: "controller", Short: "Report the GPUs of all nodes to the API server",
		Long: "Find podgauge's pods, follow podgauge on each node, and report the GPUs to the API server:\n" +
			"faults as events of pods and nodes, the health as a condition of each node, and unhealthy\n" +
			"devices of DRA drivers by taints.",
		Example: "  podgauge-kube controller --namespace=podgauge --events --node-condition=podgauge",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			log, err := newLog()
			if err != nil {
				return err
			}
			return cli.Failed(o.run(c.Context(), log))
		},
	}
	o.addFlags(command.Flags())
	return command
}

func (o *controllerOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.nodes.Namespace, "namespace", "", "`namespace` of podgauge's pods (default the own namespace)")
	f.StringVar(&o.nodes.Selector, "selector", "app.kubernetes.io/name=podgauge", "`labels` of podgauge's pods")
	f.IntVar(&o.nodes.Port, "port", 0, "`port` of podgauge (default the container port named metrics, or 9400)")
	f.StringVar(&o.nodes.Scheme, "node-scheme", "http", "`scheme` of podgauge's API: http or https")
	f.StringVar(&o.tls.CAFile, "node-ca-file", "",
		"`file` with the certificates of authorities for https (default the system's)")
	f.StringVar(&o.tls.ServerName, "node-server-name", "",
		"`name` in the certificates of the nodes (default the pod's address)")
	f.BoolVar(&o.tls.Insecure, "node-insecure-skip-verify", false, "accept any certificate of a node")
	f.StringVar(&o.nodes.Username, "node-username", "", "`name` of podgauge's user, with --node-password-file")
	f.StringVar(&o.nodes.PasswordFile, "node-password-file", "", "`file` with the password of podgauge's user")
	f.BoolVar(&o.events, "events", false, "report incidents as events of the affected pods and of the node")
	f.StringVar(&o.condition.Preset, "node-condition", "",
		"report the GPUs' health as node conditions with the types and reasons of a `preset`: podgauge, eks or aks; "+
			"empty: no condition")
	f.StringVar(&o.condition.Type, "node-condition.type", "", "`type` of the condition (default the preset's)")
	f.StringVar(&o.condition.HealthyStatus, "node-condition.healthy-status", "",
		"`status` of the condition without a fault: True or False (default the preset's)")
	f.StringToStringVar(&o.condition.Reasons, "node-condition.reasons", nil,
		"`reasons` of the condition: ready=REASON,unhealthy=REASON,unknown=REASON (default the preset's)")
	f.BoolVar(&o.taints, "device-taints", false,
		"taint unhealthy devices of DRA drivers by DeviceTaintRules, so that they are not allocated")
	f.StringToStringVar(&o.effects, "device-taints.effects", nil,
		"`effects` by class of fault or by action, instead of NoSchedule: "+
			"hardware=NoExecute,reset_gpu=None,suspect=off; "+
			"classes are hardware, software, driver, retired and suspect (None)")
	o.election.addFlags(f)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`, outside of a cluster")
	f.StringVar(&o.listen, "web.listen-address", ":9401", "`address` of metrics and probes")
}

// check checks the flags.
func (o *controllerOptions) check() (err error) {
	if _, err := labels.Parse(o.nodes.Selector); err != nil {
		return fmt.Errorf("--selector %q: %w", o.nodes.Selector, err)
	}
	if err := text.CheckAddress(o.listen); err != nil {
		return fmt.Errorf("--web.listen-address %q: %w", o.listen, err)
	}
	https := o.nodes.Scheme == "https"
	switch {
	case o.nodes.Scheme != "http" && !https:
		return fmt.Errorf("--node-scheme %q: expected http or https", o.nodes.Scheme)
	case !https && (o.tls.CAFile != "" || o.tls.ServerName != "" || o.tls.Insecure):
		return errors.New("--node-ca-file, --node-server-name, --node-insecure-skip-verify: " +
			"set --node-scheme=https")
	case (o.nodes.Username == "") != (o.nodes.PasswordFile == ""):
		return errors.New("--node-username, --node-password-file: set both or none of them")
	case o.nodes.Port < 0 || o.nodes.Port > 65535:
		return fmt.Errorf("--port %d: expected 1 to 65535", o.nodes.Port)
	}
	if o.conditions, err = o.condition.Kinds(); err != nil {
		return err
	}
	if o.taints {
		if o.taintEffects, err = taints.ParseEffects(o.effects); err != nil {
			return fmt.Errorf("--device-taints.effects: %w", err)
		}
	}
	if !o.events && !o.taints && len(o.conditions) == 0 {
		return errors.New("nothing to report: set --events, --node-condition or --device-taints")
	}
	return nil
}

// run runs the controller until ctx is done.
func (o *controllerOptions) run(ctx context.Context, log *slog.Logger) error {
	m := newMetrics()
	config, err := o.connect(m)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if o.nodes.HTTP, err = nodes.NewHTTPClient(o.tls); err != nil {
		return fmt.Errorf("prepare https: %w", err)
	}
	o.nodes.Kubernetes, o.nodes.Log = client, log
	if o.events {
		reporter := events.New(client, log)
		o.nodes.Reporters = append(o.nodes.Reporters, reporter)
		m.addEvents(reporter.Dropped)
	}
	if len(o.conditions) > 0 {
		o.nodes.Reporters = append(o.nodes.Reporters, condition.New(client, o.conditions))
	}
	var tasks []func(context.Context) error
	if o.taints {
		rules, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		reporter := taints.New(taints.Options{Client: client, Dynamic: rules, Effects: o.taintEffects, Log: log})
		o.nodes.Reporters = append(o.nodes.Reporters, reporter)
		tasks = append(tasks, reporter.Run)
	}
	n := nodes.New(o.nodes)
	tasks = append(tasks, n.Run)
	m.addNodes("followed", func() int { followed, _ := n.Count(); return followed })
	m.addNodes("unreachable", func() int { _, unreachable := n.Count(); return unreachable })
	leads := m.newLeaderGauge()
	// The election has its own client, so that a burst of writes cannot delay the
	// renewal of the lease.
	leases, err := kubernetes.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return err
	}
	log.Info("podgauge-kube started", "version", version, "namespace", o.nodes.Namespace)
	return o.serve(ctx, m.handler(n.Ready), func(ctx context.Context) error {
		return o.election.lead(ctx, leases, log, func(ctx context.Context) error {
			leads.Set(1)
			g, ctx := errgroup.WithContext(ctx)
			for _, task := range tasks {
				g.Go(func() error { return task(ctx) })
			}
			return g.Wait()
		})
	})
}

// connect returns the address and credentials of the API server, and completes
// namespaces.
func (o *controllerOptions) connect(m metrics) (*rest.Config, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.kubeconfig}, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find API server: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("find own namespace: %w", err)
	}
	if o.nodes.Namespace == "" {
		o.nodes.Namespace = namespace
	}
	if o.election.namespace == "" {
		o.election.namespace = namespace
	}
	config.QPS, config.Burst, config.UserAgent = requestsPerSecond, requestsBurst, "podgauge-kube/"+version
	config.Wrap(m.countRequests)
	return config, nil
}

// serve runs a task beside the HTTP server of metrics and probes.
func (o *controllerOptions) serve(ctx context.Context, h http.Handler, task func(context.Context) error) error {
	server := &http.Server{Addr: o.listen, Handler: h, ReadHeaderTimeout: 10 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		defer server.Close() //nolint:errcheck // at the end
		return task(ctx)
	})
	return g.Wait()
}
