package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// replica is a replica of the controller, which records what its task does.
type replica struct {
	stop  context.CancelFunc
	tasks chan string // "begin", "end"
	done  chan error
}

func startReplica(ctx context.Context, client *fake.Clientset, err error) *replica {
	ctx, cancel := context.WithCancel(ctx)
	r := &replica{stop: cancel, tasks: make(chan string, 2), done: make(chan error, 1)}
	e := election{enabled: true, namespace: "podgauge", name: "podgauge-kube"}
	go func() {
		r.done <- e.lead(ctx, client, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			r.tasks <- "begin"
			<-ctx.Done()
			time.Sleep(time.Second) // the last request
			r.tasks <- "end, holder " + holder(client)
			return err
		})
	}()
	return r
}

// holder returns the host of the lease's holder.
func holder(client *fake.Clientset) string {
	lease, err := client.CoordinationV1().Leases("podgauge").Get(context.Background(), "podgauge-kube", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if id := *lease.Spec.HolderIdentity; id == "" {
		return "nobody"
	}
	return "somebody"
}

// TestElection checks that one of two replicas leads, and that the other one follows at once when it ends, but not
// before its last request.
func TestElection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := startReplica(t.Context(), client, nil)
		if got := <-first.tasks; got != "begin" {
			t.Errorf("got %s", got)
		}
		second := startReplica(t.Context(), client, nil)
		time.Sleep(time.Minute)
		if len(second.tasks) != 0 {
			t.Error("two replicas lead")
		}
		first.stop()
		if got := <-first.tasks; got != "end, holder somebody" {
			t.Errorf("got %s, want the lease until the end of the task", got)
		}
		if err := <-first.done; err != nil {
			t.Error(err)
		}
		begin := time.Now()
		if <-second.tasks; time.Since(begin) > 3*retryPeriod { // client-go waits for up to 2.2 periods
			t.Errorf("the second replica follows after %s", time.Since(begin))
		}
		third := startReplica(t.Context(), client, nil)
		synctest.Wait()
		third.stop() // without the lease
		second.stop()
		if err := errors.Join(<-second.done, <-third.done); err != nil || holder(client) != "nobody" {
			t.Errorf("got error %v, lease of %s", err, holder(client))
		}
	})
}

// TestLostLease checks that a leader that cannot renew the lease ends its task and returns an error.
func TestLostLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var down atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("no API server")
		})
		r := startReplica(t.Context(), client, nil)
		<-r.tasks
		begin := time.Now()
		down.Store(true)
		if err := <-r.done; err == nil || !strings.Contains(err.Error(), "lost the lease") {
			t.Errorf("got error %v", err)
		}
		if d := time.Since(begin); d > leaseDuration {
			t.Errorf("the task ended after %s, when another replica may lead", d)
		}
		if len(r.tasks) != 1 {
			t.Error("the task did not end")
		}
	})
}

// TestFailedTask checks that the error of a task ends the process.
func TestFailedTask(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		failure := errors.New("broken")
		r := startReplica(t.Context(), fake.NewClientset(), failure)
		<-r.tasks
		r.stop()
		if err := <-r.done; !errors.Is(err, failure) {
			t.Errorf("got %v", err)
		}
		e, ran := election{}, false
		if err := e.lead(t.Context(), nil, nil, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("without election: got %v", err)
		}
	})
}
