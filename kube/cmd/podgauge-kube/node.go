package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	draclient "k8s.io/dynamic-resource-allocation/client"
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
	dir                        string
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
			"The command runs beside podgauge, in the same pod, and shares a folder with it. It only reads from the\n" +
			"API server. NODE_NAME in the environment is the name of the node.",
		Example: "  podgauge-kube node --pods\n" +
			"  podgauge-kube node --config-label=nvidia.com/device-plugin.config --once",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := o.check(); err != nil {
				return err
			}
			if o.log, err = newLog(); err != nil {
				return err
			}
			client, err := connect()
			if err != nil {
				return cli.Failed(fmt.Errorf("find the API server: %w", err))
			}
			ctx := klog.NewContext(c.Context(), logr.FromSlogHandler(o.log.Handler()))
			return cli.Failed(o.run(ctx, client))
		},
	}
	f := c.Flags()
	f.StringVar(&o.dir, "dir", "/run/podgauge-kube", "`folder` shared with podgauge")
	f.BoolVar(&o.pods, "pods", false, "serve the kubelet's Pods API on pods-api.sock, for kubelets before 1.37")
	f.StringVar(&o.configLabel, "config-label", "",
		"node `label` whose value goes to the file config-name, for example nvidia.com/device-plugin.config")
	f.StringVar(&o.configDefault, "config-default", "", "`name` in config-name for a node without the label")
	f.BoolVar(&o.adminClaims, "admin-claims", false, "list claims with admin access in the file admin-claims")
	f.BoolVar(&o.once, "once", false, "write the files and exit, after at most "+onceTimeout.String())
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

// connect returns the client of a pod. Objects come as protobuf, which takes
// less memory to decode.
func connect() (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = queriesPerSecond, burst
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

// run serves the enabled features, and starts only the sources that they need:
// the service account has no further rights. With once, the last known files
// have to do without an answer of the API server.
func (o *nodeOptions) run(ctx context.Context, client kubernetes.Interface) error {
	if err := os.MkdirAll(o.dir, 0o755); err != nil { //nolint:gosec // podgauge's user may differ
		return fmt.Errorf("make folder: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.once {
		defer time.AfterFunc(o.timeout, cancel).Stop()
	}
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func(context.Context) error) { group.Go(func() error { return run(ctx) }) }
	var files sync.WaitGroup
	keep := func(f *nodefiles.File, name string) {
		f.Path, f.Once, f.Log = filepath.Join(o.dir, name), o.once, o.log
		files.Add(1)
		start(func(ctx context.Context) error {
			defer files.Done()
			return f.Run(ctx)
		})
	}
	if o.configLabel != "" {
		node := source.Node(client, o.node, o.log)
		start(node.Run)
		content := nodefiles.Label(o.configLabel, o.configDefault)
		keep(&nodefiles.File{Objects: node, Content: content, Default: o.configDefault + "\n"}, "config-name")
	}
	pods := source.Pods(client, o.node, o.log)
	if o.adminClaims {
		claims := &nodefiles.AdminClaims{Client: draclient.New(client)}
		keep(&nodefiles.File{Objects: pods, Content: claims.Content}, "admin-claims")
	}
	serve := o.pods && !o.once
	if serve {
		start(podsapi.New(filepath.Join(o.dir, podsapi.SocketName), pods, o.log).Run)
	}
	if serve || o.adminClaims {
		start(pods.Run)
	}
	if o.once {
		start(func(context.Context) error {
			files.Wait()
			cancel()
			return nil
		})
	}
	return group.Wait()
}
