package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The times of a lease. A leader ends its task up to two deadlines after a
// failure, because client-go tries to release the lease first. The next leader
// must not have started by then.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 6 * time.Second
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

// lead runs a task while this process is the leader, until ctx is done. It
// releases the lease after the end of the task.
func (e *election) lead(ctx context.Context, client kubernetes.Interface, log *slog.Logger,
	task func(context.Context) error,
) error {
	if !e.enabled {
		return task(ctx)
	}
	host, _ := os.Hostname() // the pod's name
	identity := host + "_" + string(uuid.NewUUID())
	started := make(chan context.Context, 1) // done at the end of leading
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, Name: e.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { started <- ctx },
			OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				log.Info("leader elected", "holder", holder, "self", holder == identity)
			},
		},
	})
	if err != nil {
		return err
	}
	electionCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { elector.Run(electionCtx) })
	defer func() { release(); running.Wait() }()
	select {
	case <-ctx.Done():
		return nil
	case leading := <-started:
		taskCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(leading, cancel)()
		if err := task(taskCtx); err != nil || ctx.Err() != nil {
			return err
		}
		return errLeaseLost
	}
}
