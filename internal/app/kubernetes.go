package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/kubestatus"
	"github.com/podgauge/podgauge/internal/nodelabel"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/spf13/pflag"
)

const (
	// labelTimeout is the time for the API server at a start without a stored
	// value. Afterwards the default config is used.
	labelTimeout = 10 * time.Second
	// labelFile holds the value of the label of --kubernetes.config-label in the state folder.
	labelFile = "config-name"
)

// kubernetesOptions are the flags of features that use the API server. Without
// them, nothing connects to the API server.
type kubernetesOptions struct {
	events, nodeCondition, pods bool
	configLabel                 string

	client   *kubeapi.Client // nil: no feature is enabled
	nodeName string
	label    *nodelabel.LabelWatcher // nil: no configLabel
}

func (o *kubernetesOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.events, "kubernetes.events", false, "report incidents as Kubernetes events of the affected pods and of the node")
	f.BoolVar(&o.nodeCondition, "kubernetes.node-condition", false, "report the health of the GPUs as condition "+kubestatus.ConditionType+" of the node")
	f.BoolVar(&o.pods, "kubernetes.pods", false, "watch the node's pods at the API server, if the kubelet has no Pods API (before 1.37)")
	f.StringVar(&o.configLabel, "kubernetes.config-label", "", "node `label` whose value selects the config of --config-file, for example nvidia.com/device-plugin.config")
}

// connect prepares the client of the enabled features.
func (o *kubernetesOptions) connect(lookupEnv envLookup) error {
	if !o.events && !o.nodeCondition && !o.pods && o.configLabel == "" {
		return nil
	}
	server, err := kubeapi.InCluster(lookupEnv)
	if err == nil {
		o.client, err = kubeapi.New(server)
	}
	if err != nil {
		return fmt.Errorf("--kubernetes.*: %w", err)
	}
	if o.nodeName, _ = lookupEnv("NODE_NAME"); o.nodeName == "" {
		return errors.New("--kubernetes.*: set NODE_NAME to the name of the node")
	}
	return nil
}

// followLabel prepares the copy of the node's label and returns the file with
// the value: the default name, if the node lacks the label.
func (o *kubernetesOptions) followLabel(stateDir, defaultName string) (file string, err error) {
	if stateDir == "" {
		if stateDir, err = os.MkdirTemp("", "podgauge"); err != nil {
			return "", fmt.Errorf("--kubernetes.config-label: %w", err)
		}
	} else if err := os.MkdirAll(stateDir, 0o755); err != nil { //nolint:gosec // as of the other state
		return "", fmt.Errorf("--kubernetes.config-label: %w", err)
	}
	o.label = &nodelabel.LabelWatcher{
		Node: &kubeapi.Follower{Client: o.client, Path: "/api/v1/nodes", FieldSelector: "metadata.name=" + o.nodeName},
		Key:  o.configLabel, Default: defaultName, File: filepath.Join(stateDir, labelFile), Log: slog.New(slog.DiscardHandler),
	}
	return o.label.File, nil
}

// loadLabel copies the node's label before the config is read. The wait is limited.
func (o *kubernetesOptions) loadLabel(ctx context.Context, stderr io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, labelTimeout)
	defer cancel()
	if err := o.label.Load(ctx); err != nil {
		fmt.Fprintf(stderr, "podgauge: --kubernetes.config-label: %v; using the last known or the default config\n", err)
	}
}

// podFollower returns the source of pods at the API server; nil if not enabled.
func (o *kubernetesOptions) podFollower() pods.PodFollower {
	if !o.pods {
		return nil
	}
	return &kubeapi.Follower{Client: o.client, Path: "/api/v1/pods", FieldSelector: "spec.nodeName=" + o.nodeName}
}

// addKubernetes adds the enabled features that report to the API server.
func (a *app) addKubernetes() {
	o := a.o.kubernetes
	options := func(component string) kubestatus.Options {
		return kubestatus.Options{
			APIServer: o.client, NodeName: o.nodeName, State: a.node, Log: a.log.With("component", component),
		}
	}
	if o.client != nil {
		a.selfMetrics.ExportKubernetesRequests(o.client.Requests)
	}
	if o.events {
		events := kubestatus.NewEvents(options("events"))
		a.selfMetrics.ExportDroppedEvents(events.Dropped)
		a.components["events"] = events
		a.tasks = append(a.tasks, func(ctx context.Context) error {
			return kubestatus.ReportWaiting(ctx, options("events"))
		})
	}
	if o.nodeCondition {
		a.components["condition"] = kubestatus.NewCondition(options("condition"))
	}
	if o.label != nil {
		o.label.Log = a.log.With("component", "config")
		a.components["label"] = o.label
	}
}
