package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	maxResponseBytes = 32 << 20
	maxErrorBytes    = 200
	defaultPort      = "9400"
)

// client asks podgauge on all nodes.
type client struct {
	flags     *genericclioptions.ConfigFlags
	streams   genericiooptions.IOStreams
	namespace string // of podgauge; empty: all
	selector  string // of podgauge's pods
	port      string // empty: the container port "metrics"
	timeout   time.Duration
	parallel  int
	exec      bool // ask by pods/exec
	progress  bool // print the number of nodes that answered

	config *rest.Config
	kube   kubernetes.Interface
	http   *http.Client
	// runInPod runs a command in a pod and returns stdout, with ErrReported after
	// an exit status of 1. Tests replace runInPod.
	runInPod   func(ctx context.Context, p *corev1.Pod, command []string) ([]byte, error)
	isTerminal func(io.Writer) bool
}

func (c *client) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.namespace, "podgauge-namespace", "", "`namespace` of podgauge's pods (default all)")
	f.StringVar(&c.selector, "podgauge-selector", "app.kubernetes.io/name=podgauge", "`labels` of podgauge's pods")
	f.StringVar(&c.port, "port", "", "`port` of podgauge (default the container's port metrics, or "+defaultPort+")")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second,
		"`time` to wait for each node; doctor and capture wait 1m unless set")
	f.IntVar(&c.parallel, "parallel", 64, "`number` of nodes to query at a time")
	f.BoolVar(&c.exec, "exec", false,
		"run podgauge in its pods (pods/exec) instead of using the API server's proxy; "+
			"needed if podgauge requires a password or serves only metrics")
}

// connect reads the kubeconfig.
func (c *client) connect() (err error) {
	if c.timeout <= 0 || c.parallel <= 0 {
		return errors.New("--timeout and --parallel: expected more than 0")
	}
	if c.config, err = c.flags.ToRESTConfig(); err != nil {
		return err
	}
	c.config.QPS = -1                           // --parallel is the limit
	shared, err := rest.HTTPClientFor(c.config) // may be Go's default client
	if err != nil {
		return err
	}
	// A redirect would carry the user's credentials to an address that a pod
	// chooses.
	c.http = &http.Client{
		Transport: shared.Transport, Timeout: shared.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.kube, err = kubernetes.NewForConfigAndClient(c.config, c.http)
	return err
}

// answer is the response of a node's podgauge, or the error.
type answer[T any] struct {
	Node     string `json:"node"`
	Pod      string `json:"podgauge"` // namespace/name
	Error    string `json:"error,omitempty"`
	Response *T     `json:"response,omitempty"`
}

// responses returns the nodes that responded, with their responses.
func responses[T any](answers []answer[T]) iter.Seq2[string, *T] {
	return func(yield func(string, *T) bool) {
		for _, a := range answers {
			if a.Response != nil && !yield(a.Node, a.Response) {
				return
			}
		}
	}
}

// askNodes returns the answers of all nodes, by node.
func askNodes[T any](ctx context.Context, c *client,
	ask func(context.Context, *corev1.Pod) (*T, error),
) ([]answer[T], error) {
	pods, err := c.pods(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]answer[T], len(pods))
	responded, stop := c.startProgress(len(pods))
	defer stop()
	var g errgroup.Group
	g.SetLimit(c.parallel)
	for i := range pods {
		g.Go(func() error {
			p := &pods[i]
			answers[i] = answer[T]{Node: cmp.Or(p.Spec.NodeName, "(no node)"), Pod: p.Namespace + "/" + p.Name}
			nodeCtx, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			response, err := ask(nodeCtx, p)
			switch {
			case err != nil && p.Status.Phase != corev1.PodRunning:
				answers[i].Error = "pod is " + string(p.Status.Phase)
			case err != nil && nodeCtx.Err() != nil && ctx.Err() == nil:
				answers[i].Error = fmt.Sprintf("no response within %s", c.timeout)
			case err != nil:
				answers[i].Error = err.Error()
			default:
				answers[i].Response = response
			}
			responded()
			return nil
		})
	}
	g.Wait() //nolint:errcheck // errors are in the answers
	return answers, nil
}

// pods returns podgauge's pods by node. Ended pods stand for nodes without
// another pod.
func (c *client) pods(ctx context.Context) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	list, err := c.kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: c.selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of podgauge: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod has the labels %s; set --podgauge-selector and --podgauge-namespace", c.selector)
	}
	running := map[string]bool{}
	for i := range list.Items {
		if p := &list.Items[i]; p.Status.Phase == corev1.PodRunning {
			running[p.Spec.NodeName] = true
		}
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.Phase != corev1.PodRunning && running[p.Spec.NodeName]
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// startProgress prints a line on stderr, which each response redraws and stop
// removes.
func (c *client) startProgress(total int) (responded, stop func()) {
	if !c.progress {
		return func() {}, func() {}
	}
	var mu sync.Mutex
	count := -1 // guarded by mu
	responded = func() {
		mu.Lock()
		defer mu.Unlock()
		count++
		fmt.Fprintf(c.streams.ErrOut, "\r%d of %s responded", count, text.Plural(total, "node"))
	}
	responded() // none yet
	return responded, func() { fmt.Fprint(c.streams.ErrOut, "\r\x1b[K") }
}

// get returns a response of podgauge's API to the client command status or
// incidents.
func get[T any](ctx context.Context, c *client, p *corev1.Pod, command string, query url.Values) (*T, error) {
	if c.exec {
		return parse[T](c.runInPod(ctx, p, clientCommand(command, query)))
	}
	return parse[T](c.proxy(ctx, p, command, query))
}

// parse returns the response in an output, which may have problems.
func parse[T any](output []byte, err error) (*T, error) {
	if err != nil && !errors.Is(err, cli.ErrReported) {
		return nil, err
	}
	response := new(T)
	if err := json.Unmarshal(output, response); err != nil {
		return nil, fmt.Errorf("not a podgauge response: %w", err)
	}
	return response, nil
}

// clientCommand returns the command line that asks a podgauge from inside the
// container, at its socket.
func clientCommand(command string, query url.Values) []string {
	args := []string{"podgauge", command, "--output=json"}
	for name := range query {
		args = append(args, "--"+name+"="+query.Get(name))
	}
	return args
}

// namespaceOr returns a namespace or, if empty, that of the kubeconfig.
func (c *client) namespaceOr(namespace string) (string, error) {
	if namespace != "" {
		return namespace, nil
	}
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// container returns podgauge's container, or the first.
func container(p *corev1.Pod) *corev1.Container {
	i := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "podgauge" })
	return &p.Spec.Containers[max(i, 0)]
}

// proxy asks through the API server, first without TLS.
func (c *client) proxy(ctx context.Context, p *corev1.Pod, command string, query url.Values) ([]byte, error) {
	status, body, err := c.proxyRequest(ctx, "", p, command, query)
	if err == nil && status == http.StatusBadRequest &&
		bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		status, body, err = c.proxyRequest(ctx, "https", p, command, query)
	}
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusOK:
		return body, nil
	case bytes.Contains(body, []byte(`"kind"`)): // of the API server
	case status == http.StatusUnauthorized:
		return nil, errors.New("podgauge requires a password, which the API server's proxy cannot send: use --exec")
	case status == http.StatusNotFound && bytes.HasPrefix(body, []byte("404 page not found")):
		return nil, errors.New("podgauge serves only metrics on the network: use --exec")
	}
	var reason struct {
		Error   string `json:"error"`   // of podgauge
		Message string `json:"message"` // of the API server
	}
	_ = json.Unmarshal(body, &reason)
	start := strings.Join(strings.Fields(string(body[:min(len(body), maxErrorBytes)])), " ")
	return nil, errors.New(cmp.Or(reason.Error, reason.Message,
		fmt.Sprintf("%d %s: %s", status, http.StatusText(status), start)))
}

func (c *client) proxyRequest(ctx context.Context, scheme string, p *corev1.Pod, command string,
	query url.Values,
) (status int, body []byte, err error) {
	port := c.port
	for _, declared := range container(p).Ports {
		if declared.Name == "metrics" {
			port = cmp.Or(port, fmt.Sprint(declared.ContainerPort))
		}
	}
	name := utilnet.JoinSchemeNamePort(scheme, p.Name, cmp.Or(port, defaultPort))
	apiPath := map[string]string{
		"status": api.DevicesPath, "incidents": api.IncidentsPath, "allocations": api.AllocationsPath,
		"metrics": "/metrics",
	}[command]
	u := c.kube.CoreV1().RESTClient().Get().Namespace(p.Namespace).Resource("pods").Name(name).
		SubResource("proxy").Suffix(apiPath).URL()
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Sec-Fetch-Site", "none") // podgauge then accepts the API server's name as Host
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // opened for reading
	body, err = io.ReadAll(io.LimitReader(response.Body, maxResponseBytes+1))
	if err == nil && len(body) > maxResponseBytes {
		err = fmt.Errorf("response larger than %d bytes", maxResponseBytes)
	}
	return response.StatusCode, body, err
}
