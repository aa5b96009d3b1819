package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The times of a lease, as of the controllers of Kubernetes.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

var errLeaseLost = errors.New("lost the lease: another replica leads, or the API server did not answer")

// election are the flags of the election.
type election struct {
	enabled         bool
	namespace, name string
}

func (e *election) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&e.enabled, "leader-elect", true, "of several replicas, only the holder of a lease reports")
	f.StringVar(&e.namespace, "lease-namespace", "", "`namespace` of the lease (default the own namespace)")
	f.StringVar(&e.name, "lease-name", "podgauge-kube", "`name` of the lease")
}

// leader runs a task while this process is the leader.
type leader struct {
	elector *leaderelection.LeaderElector // nil: no other process
	health  *leaderelection.HealthzAdaptor
	leading atomic.Bool
	started chan context.Context // a context while this process leads
}

// leader returns the candidate of this process. It has its own client, so
// that a burst of writes cannot delay the renewal.
func (e *election) leader(config *rest.Config, log *slog.Logger) (*leader, error) {
	l := &leader{started: make(chan context.Context, 1), health: leaderelection.NewLeaderHealthzAdaptor(leaseDuration)}
	if !e.enabled {
		return l, nil
	}
	client, err := kubernetes.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	identity := host + "_" + string(uuid.NewUUID())
	l.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, WatchDog: l.health, Name: e.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { l.started <- ctx },
			OnStoppedLeading: func() {},
			OnNewLeader:      func(holder string) { log.Info("leader elected", "holder", holder, "self", holder == identity) },
		},
	})
	if err == nil {
		l.health.SetLeaderElection(l.elector)
	}
	return l, err
}

func (l *leader) isLeader() bool { return l.leading.Load() }

// healthy returns an error if the leader did not renew the lease.
func (l *leader) healthy() error { return l.health.Check(nil) }

// run runs the task as leader until ctx is done. It releases the lease after
// the end of the task.
func (l *leader) run(ctx context.Context, task func(context.Context) error) error {
	if l.elector == nil {
		l.leading.Store(true)
		return task(ctx)
	}
	electionCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.elector.Run(electionCtx)
	}()
	defer func() { release(); <-ended }()
	var leading context.Context
	select {
	case <-ctx.Done():
		return nil
	case leading = <-l.started:
	}
	l.leading.Store(true)
	taskCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(leading, cancel)()
	err := task(taskCtx)
	if err == nil && ctx.Err() == nil {
		err = errLeaseLost
	}
	return err
}
