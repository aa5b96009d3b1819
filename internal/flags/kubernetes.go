package flags

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
	// labelFile holds the value of the label of --kubernetes.config-label in the
	// state folder.
	labelFile = "config-name"
)

// Kubernetes are the flags of features that use the API server. Without
// them, nothing connects to the API server.
type Kubernetes struct {
	Events, NodeCondition bool
	pods                  bool
	configLabel           string

	Client   *kubeapi.Client // nil: no feature is enabled
	NodeName string
	Label    *nodelabel.LabelWatcher // nil: no configLabel
}

func (o *Kubernetes) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Events, "kubernetes.events", false,
		"report incidents as Kubernetes events of the affected pods and of the node")
	f.BoolVar(&o.NodeCondition, "kubernetes.node-condition", false,
		"report the health of the GPUs as condition "+kubestatus.ConditionType+" of the node")
	f.BoolVar(&o.pods, "kubernetes.pods", false,
		"watch the node's pods at the API server, if the kubelet has no Pods API (before 1.37)")
	f.StringVar(&o.configLabel, "kubernetes.config-label", "",
		"node `label` whose value selects the config of --config-file, for example nvidia.com/device-plugin.config")
}

// connect prepares the client of the enabled features.
func (o *Kubernetes) connect(lookupEnv func(name string) (value string, set bool)) error {
	if !o.Events && !o.NodeCondition && !o.pods && o.configLabel == "" {
		return nil
	}
	if o.Client == nil {
		server, err := kubeapi.InCluster(lookupEnv)
		if err != nil {
			return fmt.Errorf("--kubernetes.*: %w", err)
		}
		o.Client = kubeapi.New(server)
	}
	if o.NodeName, _ = lookupEnv("NODE_NAME"); o.NodeName == "" {
		return errors.New("--kubernetes.*: set NODE_NAME to the name of the node")
	}
	return nil
}

// followLabel prepares the copy of the node's label and returns the file with
// the value: the default name, if the node lacks the label.
func (o *Kubernetes) followLabel(stateDir, defaultName string) (file string, err error) {
	if stateDir == "" {
		if stateDir, err = os.MkdirTemp("", "podgauge"); err != nil {
			return "", fmt.Errorf("--kubernetes.config-label: %w", err)
		}
	} else if err := os.MkdirAll(stateDir, 0o755); err != nil { //nolint:gosec // as of the other state
		return "", fmt.Errorf("--kubernetes.config-label: %w", err)
	}
	o.Label = &nodelabel.LabelWatcher{
		Node: &kubeapi.Follower{
			Client: o.Client, Path: "/api/v1/nodes", FieldSelector: "metadata.name=" + o.NodeName,
		},
		Key: o.configLabel, Default: defaultName, File: filepath.Join(stateDir, labelFile),
		Log: slog.New(slog.DiscardHandler),
	}
	return o.Label.File, nil
}

// loadLabel copies the node's label before the config is read. The wait is
// limited.
func (o *Kubernetes) loadLabel(ctx context.Context, stderr io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, labelTimeout)
	defer cancel()
	if err := o.Label.Load(ctx); err != nil {
		const text = "podgauge: --kubernetes.config-label: %v; using the last known or the default config\n"
		fmt.Fprintf(stderr, text, err)
	}
}

// PodFollower returns the source of pods at the API server; nil if not enabled.
func (o *Kubernetes) PodFollower() pods.PodFollower {
	if !o.pods {
		return nil
	}
	return &kubeapi.Follower{Client: o.Client, Path: "/api/v1/pods", FieldSelector: "spec.nodeName=" + o.NodeName}
}
