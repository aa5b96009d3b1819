// Package source has informers of a node's objects at the API server.
package source

import (
	"context"
	"log/slog"

	"github.com/podgauge/podgauge/internal/pubsub"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Source is an informer that knows if the API server is away: the objects are
// the last known ones then.
type Source[T cache.Object] struct {
	cache.TypedSharedIndexInformer[T]
	// Err is the error of the newest list or watch, or nil.
	Err pubsub.Value[error]

	log *slog.Logger
}

// Pods returns a source of a node's pods, with the fields that podgauge reads.
func Pods(client kubernetes.Interface, node string, log *slog.Logger) *Source[*v1.Pod] {
	selector := fields.OneTermEqualSelector("spec.nodeName", node)
	return newSource(client, client.CoreV1().Pods(""), selector, &v1.Pod{}, trimPod, log.With("resource", "pods"))
}

// Node returns a source of a node and its labels.
func Node(client kubernetes.Interface, name string, log *slog.Logger) *Source[*v1.Node] {
	selector := fields.OneTermEqualSelector("metadata.name", name)
	return newSource(client, client.CoreV1().Nodes(), selector, &v1.Node{}, trimNode, log.With("resource", "nodes"))
}

// resource is a typed client of client-go.
type resource[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

func newSource[T interface {
	cache.Object
	runtime.Object
}, L runtime.Object](
	client kubernetes.Interface, api resource[L], selector fields.Selector, object T, trim func(T), log *slog.Logger,
) *Source[T] {
	s := &Source[T]{log: log}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			list, err := api.List(ctx, o)
			s.record(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
			w, err := api.Watch(ctx, o)
			// an API server that cannot list by a watch gets a list request next
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				s.record(ctx, err)
			}
			return w, err
		},
	}, client), object, 0, cache.Indexers{})
	// both fail only after the start
	_ = informer.SetTransform(func(o any) (any, error) {
		if object, ok := o.(T); ok { // not cache.DeletedFinalStateUnknown
			trim(object)
		}
		return o, nil
	})
	_ = informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}) // record logs errors
	s.TypedSharedIndexInformer = cache.NewTypedSharedIndexInformer[T](informer)
	return s
}

// Run follows the objects until ctx is done.
func (s *Source[T]) Run(ctx context.Context) error {
	s.RunWithContext(ctx)
	return nil
}

// Objects returns the last known objects.
func (s *Source[T]) Objects() (objects []T) {
	for _, o := range s.GetStore().List() {
		objects = append(objects, o.(T))
	}
	return objects
}

// Changes returns a channel with room for one notice, which follows each change
// of an object.
func (s *Source[T]) Changes() (<-chan struct{}, error) {
	changes := make(chan struct{}, 1)
	_, err := s.AddTypedEventHandler(cache.TypedResourceEventHandlerFuncs[T]{
		AddFunc:    func(T) { pubsub.Notify(changes) },
		UpdateFunc: func(_, _ T) { pubsub.Notify(changes) },
		DeleteFunc: func(cache.DeletedObject[T]) { pubsub.Notify(changes) },
	})
	return changes, err
}

// record publishes the result of a request, and logs the first of several
// errors.
func (s *Source[T]) record(ctx context.Context, err error) {
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
