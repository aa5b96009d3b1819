package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/kube/internal/nodefiles"
	"github.com/podgauge/podgauge/kube/internal/podsapi"
	"github.com/podgauge/podgauge/kube/internal/source"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const (
	// onceTimeout is the time for the API server with --once: podgauge starts
	// afterwards, with the last known files.
	onceTimeout = 10 * time.Second
	// The claims of all pods are read at the start, within onceTimeout.
	queriesPerSecond, burst = 20, 100
)

// nodeOptions are the flags of the node command.
type nodeOptions struct {
	dir, kubeconfig            string
	pods, adminClaims, once    bool
	configLabel, configDefault string

	node    string        // name
	timeout time.Duration // of once
	log     *slog.Logger
}

// newNodeCommand returns the command of the sidecar. newLog is called after the
// flags are parsed.
func newNodeCommand(newLog func() (*slog.Logger, error)) *cobra.Command {
	o := &nodeOptions{node: os.Getenv("NODE_NAME"), timeout: onceTimeout}
	c := &cobra.Command{
		Use:   "node",
		Short: "Serve a node's pods and labels to podgauge, without writing to the API server",
		Long: "Serve a node's pods and labels to podgauge, which has no access to the API server.\n\n" +
			"The command runs beside podgauge, in the same pod, and shares a folder with it. It only reads from the API\n" +
			"server. NODE_NAME in the environment is the name of the node.",
		Example: "  podgauge-kube node --pods\n  podgauge-kube node --config-label=nvidia.com/device-plugin.config --once",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := o.check(); err != nil {
				return err
			}
			if o.log, err = newLog(); err != nil {
				return err
			}
			client, claims, err := o.connect()
			if err != nil {
				return cli.Failed(err)
			}
			ctx := klog.NewContext(c.Context(), logr.FromSlogHandler(o.log.Handler()))
			return cli.Failed(o.run(ctx, client, claims))
		},
	}
	f := c.Flags()
	f.StringVar(&o.dir, "dir", "/run/podgauge-kube", "`folder` shared with podgauge")
	f.BoolVar(&o.pods, "pods", false, "serve the kubelet's Pods API on "+podsapi.SocketName+", for kubelets before 1.37")
	f.StringVar(&o.configLabel, "config-label", "",
		"node `label` whose value goes to the file config-name, for example nvidia.com/device-plugin.config")
	f.StringVar(&o.configDefault, "config-default", "", "`name` in config-name for a node without the label")
	f.BoolVar(&o.adminClaims, "admin-claims", false, "list claims with admin access in the file admin-claims")
	f.BoolVar(&o.once, "once", false, "write the files and exit, after at most "+onceTimeout.String())
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the access to the API server (default: of the pod)")
	return c
}

func (o *nodeOptions) check() error {
	switch {
	case o.node == "":
		return errors.New("set NODE_NAME in the environment to the name of the node")
	case !o.pods && o.configLabel == "" && !o.adminClaims:
		return errors.New("set --pods, --config-label or --admin-claims")
	case o.configDefault != "" && o.configLabel == "":
		return errors.New("--config-default requires --config-label")
	}
	if o.configLabel == "" {
		return nil
	}
	if problems := validation.IsQualifiedName(o.configLabel); len(problems) > 0 {
		return fmt.Errorf("--config-label %q: %s", o.configLabel, strings.Join(problems, "; "))
	}
	return nil
}

// connect returns clients of the API server. Pods and nodes come as protobuf,
// which takes less memory to decode.
func (o *nodeOptions) connect() (kubernetes.Interface, dynamic.Interface, error) {
	config, err := rest.InClusterConfig()
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the API server: %w", err)
	}
	config.QPS, config.Burst = queriesPerSecond, burst
	claims, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return client, claims, nil
}

// nodeFile is a file of package nodefiles.
type nodeFile interface {
	Load(ctx context.Context) error
	Run(ctx context.Context) error
}

// run serves the enabled features, and starts only the sources that they need:
// the service account has no further rights.
func (o *nodeOptions) run(ctx context.Context, client kubernetes.Interface, claims dynamic.Interface) error {
	if err := os.MkdirAll(o.dir, 0o755); err != nil { //nolint:gosec // podgauge's user may differ
		return fmt.Errorf("make folder: %w", err)
	}
	var tasks []func(context.Context) error
	var files []nodeFile
	if o.configLabel != "" {
		node := source.Node(client, o.node, o.log)
		f, err := nodefiles.NewLabelFile(filepath.Join(o.dir, "config-name"), node, o.configLabel, o.configDefault, o.log)
		if err != nil {
			return err
		}
		tasks, files = append(tasks, node.Run), append(files, f)
	}
	pods := source.Pods(client, o.node, o.log)
	if o.adminClaims {
		f, err := nodefiles.NewClaimsFile(filepath.Join(o.dir, "admin-claims"), pods, claims, client.Discovery(), o.log)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	if o.pods && !o.once {
		server, err := podsapi.New(filepath.Join(o.dir, podsapi.SocketName), pods, o.log)
		if err != nil {
			return err
		}
		tasks = append(tasks, server.Run)
	}
	if o.adminClaims || o.pods && !o.once {
		tasks = append(tasks, pods.Run)
	}
	if o.once {
		return o.runOnce(ctx, tasks, files)
	}
	for _, f := range files {
		tasks = append(tasks, f.Run)
	}
	return runAll(ctx, tasks)
}

// runOnce writes the files. Without an answer of the API server, the last known
// files have to do.
func (o *nodeOptions) runOnce(ctx context.Context, tasks []func(context.Context) error, files []nodeFile) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	loads := errgroup.Group{}
	for _, f := range files {
		loads.Go(func() error {
			if err := f.Load(ctx); err != nil {
				o.log.Warn("using the last known or the default file", "err", err)
			}
			return nil
		})
	}
	return runAll(ctx, append(tasks, func(context.Context) error {
		defer cancel()
		return loads.Wait()
	}))
}

// runAll runs tasks until ctx is done or one fails.
func runAll(ctx context.Context, tasks []func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range tasks {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}
