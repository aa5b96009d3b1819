// Package taints keeps a DeviceTaintRule for each unhealthy device that a DRA
// driver publishes, so that the scheduler allocates no unhealthy device
// (KEP-5055).
package taints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/retry"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// discoveryInterval is the interval of looking for the API, and for rules of
	// nodes that are gone.
	discoveryInterval = 5 * time.Minute
	retryInterval     = 10 * time.Second // before the rules are known
	logInterval       = time.Hour        // of an error that repeats
)

// Options are the clients and the policy of Taints.
type Options struct {
	Client  kubernetes.Interface // discovery, get nodes, list resourceslices
	Dynamic dynamic.Interface    // list, watch, create, update and delete devicetaintrules
	Effects Effects
	Log     *slog.Logger
}

// Taints keeps the rules of all nodes. A rule belongs to podgauge-kube if it has
// its label; other rules are neither read nor written.
type Taints struct {
	o         Options
	limiter   *loglimit.Limiter[string] // by text
	published publications
	session   atomic.Pointer[session] // nil: the rules are unknown, or the API server has none
	// withoutNone is set if the API server rejects the effect None, which it
	// knows since Kubernetes 1.35.
	withoutNone atomic.Bool
}

// New returns Taints. Reports have no effect before Run.
func New(o Options) *Taints {
	return &Taints{o: o, limiter: loglimit.New[string](logInterval), published: publications{client: o.Client}}
}

// Run follows the rules of the API server until ctx is done.
func (t *Taints) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		switch rules, err := t.discover(); {
		case err != nil:
			t.warn("search for DeviceTaintRule in the API failed", err)
			_ = retry.Sleep(ctx, retryInterval)
		case rules.Empty():
			t.warn("devices are not tainted", errors.New("the API server has no DeviceTaintRule"))
			_ = retry.Sleep(ctx, discoveryInterval)
		default:
			t.follow(ctx, rules)
		}
	}
	return nil
}

func (t *Taints) warn(message string, err error) {
	if t.limiter.Allow(message+err.Error(), time.Now()) {
		t.o.Log.Warn(message, "err", err)
	}
}

// discover returns the rules in the newest version that the API server has.
func (t *Taints) discover() (schema.GroupVersionResource, error) {
	for _, version := range []string{"v1", "v1beta2", "v1alpha3"} {
		rules := schema.GroupVersionResource{Group: resource.GroupName, Version: version, Resource: "devicetaintrules"}
		if ok, err := discovery.IsResourceEnabled(t.o.Client.Discovery(), rules); ok || err != nil {
			return rules, err
		}
	}
	return schema.GroupVersionResource{}, nil
}

// follow follows the rules until ctx is done or the API server has another
// version.
func (t *Taints) follow(ctx context.Context, rules schema.GroupVersionResource) {
	ctx, cancel := context.WithCancel(ctx)
	selectOwn := func(o *metav1.ListOptions) { o.LabelSelector = managedBy + "=" + manager }
	informer := dynamicinformer.NewFilteredDynamicInformer(t.o.Dynamic, rules, "", 0,
		cache.Indexers{byNode: indexByNode}, selectOwn).Informer()
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		t.warn("watch of device taint rules failed", err)
	})
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()

	syncing, stop := context.WithTimeout(ctx, discoveryInterval)
	defer stop()
	if !cache.WaitForCacheSync(syncing.Done(), informer.HasSynced) {
		return // Run starts again, if ctx is not done
	}
	s := &session{version: rules.GroupVersion(), rules: t.o.Dynamic.Resource(rules), known: informer.GetIndexer()}
	t.session.Store(s)
	defer t.session.Store(nil)
	t.o.Log.Info("following device taint rules", "version", rules.Version)
	for {
		t.removeOrphans(ctx, s)
		if retry.Sleep(ctx, discoveryInterval) != nil {
			return
		}
		if newest, err := t.discover(); err == nil && newest != rules {
			return
		}
	}
}

// removeOrphans deletes the rules of nodes that the cluster no longer has.
func (t *Taints) removeOrphans(ctx context.Context, s *session) {
	for _, node := range s.known.ListIndexFuncValues(byNode) {
		_, err := t.o.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = t.Forget(ctx, node)
		}
		if err != nil {
			t.warn("search for rules of deleted nodes failed", err)
		}
	}
}

// Forget deletes the rules of a node that the cluster no longer has.
func (t *Taints) Forget(ctx context.Context, node string) error {
	t.published.nodes.Delete(node)
	s := t.session.Load()
	if s == nil {
		return nil // Run deletes them when it knows the rules
	}
	rules, err := s.rulesOf(node)
	errs := []error{err}
	for _, rule := range rules {
		errs = append(errs, t.remove(ctx, s, rule))
	}
	return errors.Join(errs...)
}

// remove deletes a rule, but not one that others created under its name.
func (t *Taints) remove(ctx context.Context, s *session, rule *resource.DeviceTaintRule) error {
	err := s.rules.Delete(ctx, rule.Name, *metav1.NewPreconditionDeleteOptions(string(rule.UID)))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return t.done(err, "device taint removed", rule)
}

// done logs a written rule.
func (t *Taints) done(err error, message string, rule *resource.DeviceTaintRule) error {
	if err != nil {
		return fmt.Errorf("write device taint rule %s: %w", rule.Name, err)
	}
	taint := rule.Spec.Taint
	t.o.Log.Info(message, "node", rule.Annotations[nodeName], "device", rule.Annotations[deviceUUID],
		"rule", rule.Name, "taint", fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
	return nil
}
