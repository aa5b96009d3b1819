package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// patience is how long a test waits for what takes milliseconds.
const patience = 20 * time.Second

// node is a simulated kubelet and a client of it, which run until the test ends.
type node struct {
	*kubelet.Kubelet
	t *testing.T
	c *Client

	mu    sync.Mutex
	ended []Pod // guarded by mu
}

func newNode(t *testing.T, version kubelet.Version, labels ...string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "pods") // short, for the sake of the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{Kubelet: kubelet.New(kubelet.Options{Dir: dir, Version: version}), t: t}
	n.runs(n.Run)
	n.wait(func(s kubelet.State) bool { return s.PodsRead && s.Serving })
	n.c, err = New(n.PodsSocket(), Options{Labels: labels, Trace: Trace{Ended: func(p Pod) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ended = append(n.ended, p)
	}}})
	if err != nil {
		t.Fatal(err)
	}
	n.runs(n.c.Run)
	return n
}

// runs runs something until the test ends.
func (n *node) runs(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("Run: %v", err)
		}
	})
}

func (n *node) wait(wanted func(kubelet.State) bool) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	if err := n.Wait(ctx, wanted); err != nil {
		n.t.Fatal(err)
	}
}

// until waits until the client knows what is wanted.
func (n *node) until(what string, wanted func(Pods) bool) Pods {
	n.t.Helper()
	timeout := time.After(patience)
	for {
		ps, changed := n.c.Look()
		if wanted(ps) {
			return ps
		}
		select {
		case <-changed:
		case <-timeout:
			n.t.Fatalf("%s: there are %q, synced %t, %v", what, ps.names(), ps.Synced, ps.Err)
		}
	}
}

func (n *node) run(p kubelet.Pod) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	if err := n.RunPod(ctx, p); err != nil {
		n.t.Fatal(err)
	}
}

// same waits until the client and the kubelet say the same of a pod, and returns it.
func (n *node) same(p kubelet.Pod) (now Pod) {
	n.t.Helper()
	n.until("the pod", func(ps Pods) bool {
		want, err := n.Pod(p)
		if err != nil {
			return false
		}
		var ok bool
		now, ok = ps.ByName(want.Namespace, want.Name)
		if !ok || !ps.Synced || now.UID != want.UID || now.Phase != want.Phase {
			return false
		}
		for _, c := range want.Containers {
			id, err := n.ContainerID(p, c.Name)
			of, name, known := ps.ByContainer(id)
			if err == nil && (!known || of.UID != want.UID || name != c.Name) {
				return false
			}
		}
		return true
	})
	return now
}

// lastEnded waits until a pod's end was told.
func (n *node) lastEnded(uid string) Pod {
	n.t.Helper()
	var last Pod
	n.until("its end", func(Pods) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, p := range n.ended {
			if p.UID == uid {
				last = p
			}
		}
		return last.UID == uid
	})
	return last
}

func podOf(name string, containers ...string) kubelet.Pod {
	p := kubelet.Pod{Namespace: "team", Name: name, Labels: map[string]string{"app": name, "secret": "no"}}
	for _, c := range containers {
		p.Containers = append(p.Containers, kubelet.Container{Name: c})
	}
	return p
}

func TestPodsOfAKubelet(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137, "app")
	first := podOf("first", "main", "side")
	first.Init = []kubelet.Container{{Name: "setup"}, {Name: "proxy", Sidecar: true}}
	n.run(first)
	p := n.same(first)
	if app, ok := p.Label("app"); app != "first" || !ok || len(p.Labels) != 1 {
		t.Errorf("its labels are %v", p.Labels)
	}
	if len(p.Containers) != 4 || p.Containers[0].State.Status != Terminated || p.Containers[1].Kind != Init || p.Containers[1].State.Status != Running {
		t.Errorf("its containers are %+v", p.Containers)
	}
	static := podOf("static", "main")
	static.Static = true
	n.run(static)
	if p := n.same(static); len(p.UID) != 32 || p.Name != "static-node-a" {
		t.Errorf("the static pod is %+v", p)
	}
	if err := n.DeletePod(first); err != nil {
		t.Fatal(err)
	}
	n.until("one pod is gone", func(ps Pods) bool { return ps.Len() == 1 })
	if end := n.lastEnded(p.UID); end.Phase != "Failed" || end.Containers[2].State.ExitCode != 143 {
		t.Errorf("it ended as %+v", end)
	}
}

func TestHowPodsEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137)
	p := podOf("trainer", "main", "side")
	n.run(p)
	uid := n.same(p).UID
	if err := n.Crash(t.Context(), p, "main", kubelet.Exit{Code: 1}); err != nil {
		t.Fatal(err)
	}
	crashed := n.same(p).Containers[0]
	if crashed.Restarts != 1 || crashed.Last.ExitCode != 1 || crashed.Last.Reason != "Error" || crashed.State.Status != Running {
		t.Errorf("after a crash it is %+v", crashed)
	}
	err := n.EndPodAs(p, kubelet.End{Exits: map[string]kubelet.Exit{"main": {Code: 137, Reason: "OOMKilled"}}})
	if err != nil {
		t.Fatal(err)
	}
	end := n.lastEnded(uid)
	if c := end.Containers[0]; end.Phase != "Failed" || c.State.Reason != "OOMKilled" || c.State.ExitCode != 137 || c.Restarts != 1 {
		t.Errorf("it ended as %+v", end)
	}
	if c := end.Containers[1]; c.State.Reason != "Completed" || c.State.ExitCode != 0 {
		t.Errorf("its other container is %+v", c)
	}
	n.until("the kubelet has done with it", func(ps Pods) bool { return ps.Len() == 0 })

	n.run(podOf("evicted", "main"))
	evicted := n.same(podOf("evicted", "main"))
	if err := n.EndPodAs(podOf("evicted", "main"), kubelet.End{Reason: "Evicted", Exits: map[string]kubelet.Exit{"main": {Code: 137}}}); err != nil {
		t.Fatal(err)
	}
	if end := n.lastEnded(evicted.UID); end.Reason != "Evicted" || end.Phase != "Failed" {
		t.Errorf("it ended as %+v", end)
	}
}

// TestANameIsUsedAgain is what a StatefulSet does.
func TestANameIsUsedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137)
	p := podOf("web-0", "main")
	seen := map[string]bool{}
	for range 20 {
		n.run(p)
		seen[n.same(p).UID] = true
		if err := n.DeletePod(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 20 {
		t.Errorf("there were %d uids", len(seen))
	}
	for uid := range seen {
		n.lastEnded(uid)
	}
	n.until("none is left", func(ps Pods) bool { return ps.Len() == 0 && ps.Synced })
}

func TestARestartOfTheKubelet(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137)
	n.run(podOf("stays", "main"))
	n.run(podOf("goes", "main"))
	stays, goes := n.same(podOf("stays", "main")), n.same(podOf("goes", "main"))
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := n.Restart(ctx, kubelet.RestartOptions{Signal: signal, While: func() {
			ps := n.until("the outage", func(ps Pods) bool { return !ps.Synced })
			if _, ok := ps.ByUID(stays.UID); !ok || ps.Err == nil {
				t.Errorf("meanwhile there are %q, %v", ps.names(), ps.Err)
			}
			_ = n.DeletePod(podOf("goes", "main"))
		}})
		if err != nil {
			t.Fatal(err)
		}
		n.until("it is back", func(ps Pods) bool {
			p, ok := ps.ByUID(stays.UID)
			return ps.Synced && ok && p.equal(&stays) && ps.Len() == 1
		})
	}
	n.lastEnded(goes.UID)
}

func TestDroppedAsTooSlow(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137)
	n.run(podOf("one", "main"))
	n.same(podOf("one", "main"))
	_, changed := n.c.Look()
	n.DropWatchers()
	<-changed
	n.until("it is back", func(ps Pods) bool { return ps.Synced && ps.Len() == 1 })
	n.wait(func(s kubelet.State) bool { return s.Calls["WatchPods"] == 2 })
}

func TestAKubeletThatRefuses(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137)
	n.until("the first pods", func(ps Pods) bool { return ps.Synced })
	n.Trouble(kubelet.Trouble{Pods: status.Error(codes.PermissionDenied, "no")})
	n.DropWatchers()
	n.until("it refuses", func(ps Pods) bool { return status.Code(ps.Err) == codes.PermissionDenied })
	n.Trouble(kubelet.Trouble{})
	n.until("it does not any more", func(ps Pods) bool { return ps.Synced })
}

func TestAnOlderKubelet(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V136)
	n.run(podOf("one", "main"))
	n.until("its absence", func(ps Pods) bool { return errors.Is(ps.Err, ErrAbsent) })
	if err := n.c.Ready(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(n.PodsSocket()); err == nil {
		t.Error("it has a Pods API")
	}
}

// TestManyPods come and go while the client follows, and in the end both have the same.
func TestManyPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, kubelet.V137)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 25 {
				p := podOf(fmt.Sprintf("pod-%d-%d", i, j), "main")
				if err := n.RunPod(t.Context(), p); err != nil {
					t.Error(err)
				}
				switch j % 4 {
				case 0:
					if err := n.DeletePod(p); err != nil {
						t.Error(err)
					}
				case 1:
					if err := n.EndPod(p); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	want := map[string]string{}
	for _, p := range n.State().Pods {
		if p.Phase == "Running" {
			want[p.UID] = p.Name
		}
	}
	n.until("all that run", func(ps Pods) bool {
		running := 0
		for p := range ps.All() {
			if p.Phase == "Running" && want[p.UID] == p.Name {
				running++
			}
		}
		return ps.Synced && running == len(want)
	})
}
