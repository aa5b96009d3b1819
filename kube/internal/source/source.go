// Package source has informers of a node's objects at the API server.
package source

import (
	"context"
	"log/slog"

	"github.com/podgauge/podgauge/internal/pubsub"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Source is an informer that knows if the API server is away: the objects are
// the last known ones then.
type Source struct {
	cache.SharedIndexInformer
	// Err is the error of the newest list or watch, or nil.
	Err pubsub.Value[error]

	log *slog.Logger
}

// Pods returns a source of a node's pods, with the fields that podgauge reads.
func Pods(client kubernetes.Interface, node string, log *slog.Logger) *Source {
	return newSource(client, client.CoreV1().Pods(""), &v1.Pod{}, "spec.nodeName="+node, log)
}

// Node returns a source of a node and its labels.
func Node(client kubernetes.Interface, name string, log *slog.Logger) *Source {
	return newSource(client, client.CoreV1().Nodes(), &v1.Node{}, "metadata.name="+name, log)
}

// resource is a typed client of client-go.
type resource[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

func newSource[L runtime.Object](
	client kubernetes.Interface, api resource[L], object runtime.Object, selector string, log *slog.Logger,
) *Source {
	s := &Source{log: log.With("objects", selector)}
	s.SharedIndexInformer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			list, err := api.List(ctx, o)
			s.record(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			w, err := api.Watch(ctx, o)
			// an API server that cannot list by a watch gets a list request next
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				s.record(ctx, err)
			}
			return w, err
		},
	}, client), object, 0, cache.Indexers{})
	// both fail only after the start; record logs errors
	_ = s.SetTransform(trim)
	_ = s.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	return s
}

// Run follows the objects until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	s.RunWithContext(ctx)
	return nil
}

// record publishes the result of a request, and logs the first of several
// errors.
func (s *Source) record(ctx context.Context, err error) {
	before, _ := s.Err.Get()
	if ctx.Err() != nil || before == nil && err == nil {
		return
	}
	s.Err.Set(err)
	switch {
	case before == nil:
		s.log.Warn("cannot follow objects of the API server, keeping the last known ones", "err", err)
	case err == nil:
		s.log.Info("following objects of the API server again")
	}
}
