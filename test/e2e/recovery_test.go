package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const (
	// followsWithin is how long the kubelet's word on a pod's GPU may lag behind what is true of it.
	followsWithin = 2 * time.Second
	// provenAfter is the least time that a GPU is on probation: three good checks take two seconds.
	provenAfter = 2 * time.Second
)

// TestRecovery has GPUs fall off the bus under pods, and come back: by a reset beneath podgauge, and by a boot of the node, which starts
// podgauge anew.
func TestRecovery(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	boots(ctx, t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	allocatable(ctx, t, n, uuids(gpus)...)
	resets(ctx, t, n, m, d)
	reboots(ctx, t, n, m, d)
}

// boots has the node say that it was booted just now.
func boots(ctx context.Context, t *testing.T, n *node.Node) {
	t.Helper()
	// Each boot has a file of its own, which is laid over the one of the boot before.
	const script = `
id=$(cat /proc/sys/kernel/random/uuid)
echo "$id" >"/run/boot-$id"
mount --bind "/run/boot-$id" /proc/sys/kernel/random/boot_id
`
	if _, err := n.Shell(ctx, script); err != nil {
		t.Fatal(err)
	}
}

// resets has a GPU be reset while podgauge and its pod run on.
func resets(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon) {
	pod := holds("reset", 1)
	before, _ := run(ctx, t, n, pod)
	held := one(ctx, t, n, pod)
	knows(ctx, t, d, held, holder(pod))
	took := falls(ctx, t, n, d, m, pod, held, without(uuids(gpus), held))
	figureOf(t, "a GPU fell off the bus: Unhealthy in the pod's allocatedResourcesStatus after", followsWithin, took.status...)

	steps := watchHealth(ctx, t, d, held)
	begin := time.Now()
	m.reset(t, index(t, held))
	recovered(ctx, t, n, d, held, pod, begin, "a reset")
	if all := steps(); !slices.Equal(all, []string{"unhealthy", "probation", "well"}) {
		t.Errorf("after a reset its health was %q in turn", all)
	}
	allocatable(ctx, t, n, uuids(gpus)...)
	s := d.next(ctx, t)
	err := errors.Join(s.is(1, "nvidia_gpu_health_flaps_total", labels{"uuid": held}), s.is(1, "nvidia_gpu_health_state", labels{"uuid": held, "state": "well"}),
		s.tells([]string{held}, map[string]node.Holder{held: holder(pod)}), runsOn(ctx, n, pod, before))
	if err != nil {
		t.Error(err)
	}
	isHealed(ctx, t, d, held, pod)
}

// without is all ids but these.
func without(all []string, ids ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(ids, id) })
}

// watchHealth asks over and over how a device is, until the returned func is called, which asks once more and returns the words for it in their
// order.
func watchHealth(ctx context.Context, t *testing.T, d *daemon, id string) (steps func() []string) {
	t.Helper()
	var all []string
	ask := func(ctx context.Context) error {
		s, err := d.standing(ctx, id)
		if err == nil && (len(all) == 0 || all[len(all)-1] != s.Health) {
			all = append(all, s.Health)
		}
		return err
	}
	watch, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		_ = node.Until(watch, "the watch ends", func(ctx context.Context) error { return errors.Join(ask(ctx), errors.New("it goes on")) })
	})
	end := func() { cancel(); done.Wait() }
	t.Cleanup(end)
	return func() []string {
		t.Helper()
		end()
		if err := ask(ctx); err != nil { // what was seen last may be older than what the caller saw
			t.Error(err)
		}
		return all
	}
}

// recovered waits until podgauge calls a device well and the kubelet says so of the pod, which follows.
func recovered(ctx context.Context, t *testing.T, n *node.Node, d *daemon, id string, pod node.Pod, begin time.Time, what string) {
	t.Helper()
	await(ctx, t, "podgauge calls it well", func(ctx context.Context) error {
		s, err := d.standing(ctx, id)
		if err != nil {
			return err
		}
		if s.Health != "well" || !s.Healthy || s.Reason != "" {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
	if took := time.Since(begin); took < provenAfter {
		t.Errorf("%s after %s it is called well: it cannot have proven that", took, what)
	}
	figureOf(t, "well after "+what, 15*time.Second, time.Since(begin)) // a GPU that was lost is listed again within ten
	figureOf(t, "… and Healthy in the pod's allocatedResourcesStatus after", followsWithin, await(ctx, t, "the pod's status says so", hasHealth(n, pod, id, "Healthy")))
}

// isHealed waits until the one incident of a device that fell off the bus tells that this is over.
func isHealed(ctx context.Context, t *testing.T, d *daemon, id string, pod node.Pod) {
	t.Helper()
	d.happened(ctx, t, id, "xid_79", func(i incident) error {
		if err := i.hitAlone(holder(pod)); err != nil {
			return err
		}
		if !i.Condemned || !i.Healed.After(i.Last) {
			return fmt.Errorf("of its end is told %+v", i)
		}
		return nil
	})
}

// reboots has the node be booted when two GPUs have fallen off the bus. Of the idle one the counter of energy goes on, which would tell of a
// reset by itself: for that GPU the boot alone speaks.
func reboots(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon) {
	pod := holds("boot", 1)
	run(ctx, t, n, pod)
	held := one(ctx, t, n, pod)
	knows(ctx, t, d, held, holder(pod))
	holders, err := n.Holders(ctx, gpu)
	if err != nil {
		t.Fatal(err)
	}
	idle := without(uuids(gpus), slices.Collect(maps.Keys(holders))...)[0]
	m.event(t, index(t, idle), "xid 79")
	allocatable(ctx, t, n, without(uuids(gpus), idle)...)
	took := falls(ctx, t, n, d, m, pod, held, without(uuids(gpus), idle, held))
	figureOf(t, "a GPU fell off the bus: Unhealthy in the pod's allocatedResourcesStatus after", followsWithin, took.status...)

	d.stop(t)
	allocatable(ctx, t, n)
	boots(ctx, t, n)
	m.reset(t, index(t, held))
	begin := time.Now()
	d = m.start(t, n)
	d.listening(ctx, t)
	steps := watchHealth(ctx, t, d, held)
	recovered(ctx, t, n, d, held, pod, begin, "a boot")
	allocatable(ctx, t, n, uuids(gpus)...)
	// A kubelet that is told of an unhealthy GPU in its first list turns away the pods that hold it: until it has proven itself it is not told at all.
	if all := steps(); !slices.Equal(all, []string{"well"}) {
		t.Errorf("after a boot its health was %q in turn", all)
	}
	for _, id := range []string{held, idle} {
		if said := d.logged(t, "health is remembered", id, "xid_79"); len(said) != 1 {
			t.Errorf("that it was not well before the boot is said %d times: %q", len(said), said)
		}
	}
	isHealed(ctx, t, d, held, pod)
}

// TestUnhealthyStays has a GPU report that it fell off the bus, and answer on as if nothing were. As long as nothing shows that it was reset,
// nobody gets it: not when podgauge is killed, nor when the kubelet is.
func TestUnhealthyStays(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	allocatable(ctx, t, n, uuids(gpus)...)
	pod := holds("train", 1)
	run(ctx, t, n, pod)
	held := one(ctx, t, n, pod)
	others := without(uuids(gpus), held)
	m.event(t, index(t, held), "xid 79")
	allocatable(ctx, t, n, others...)
	asked := neverAllocatable(ctx, t, n, held)
	unwell := func(s scrape) error {
		return errors.Join(s.is(0, "nvidia_gpu_healthy", labels{"uuid": held}), s.is(1, "nvidia_gpu_unhealthy_info", labels{"uuid": held, "reason": "xid_79"}))
	}
	scraped := 0
	for _, end := range []struct {
		what string
		do   func()
	}{
		{"podgauge was killed", func() { again(ctx, t, n, m, &d, syscall.SIGKILL, others) }},
		{"podgauge was killed once more", func() { again(ctx, t, n, m, &d, syscall.SIGKILL, others) }},
		{"podgauge was ended", func() { again(ctx, t, n, m, &d, syscall.SIGTERM, others) }},
		{"the kubelet was ended", func() { kubeletAgain(ctx, t, n, syscall.SIGTERM, others) }},
		{"the kubelet was killed", func() { kubeletAgain(ctx, t, n, syscall.SIGKILL, others) }},
	} {
		end.do()
		begin := time.Now()
		if err := unwell(judged(ctx, t, d, held)); err != nil {
			t.Errorf("the first scrape that tells, after %s: %v", end.what, err)
		}
		watch := watchScrapes(ctx, t, d, 100*time.Millisecond, unwell)
		await(ctx, t, "the pod's status says so", hasHealth(n, pod, held, "Unhealthy"))
		await(ctx, t, "it has been checked often enough to be trusted", since(begin, provenAfter+time.Second))
		scraped += watch.stop(t)
	}
	figure(t, "a GPU with Xid 79 that answers, over three restarts of podgauge and two of the kubelet",
		fmt.Sprintf("unhealthy in all of %d scrapes; not among the kubelet's in all of %d answers", scraped, asked()))
	d.stop(t)
	allocatable(ctx, t, n)
	forgets(ctx, t, n, m, held)
}

// forgets has podgauge find that its memory is no memory: that is set aside, and no GPU is given away before it was checked, nor condemned.
func forgets(ctx context.Context, t *testing.T, n *node.Node, m *machine, held string) {
	const garbage = "\x00{no memory\n"
	file := filepath.Join(m.memory, "health.json")
	if known, err := os.ReadFile(file); err != nil || !strings.Contains(string(known), held) {
		t.Fatalf("%s does not speak of %s: %s, %v", file, held, known, err)
	}
	if err := os.WriteFile(file, []byte(garbage), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	d := m.start(t, n)
	took := within(ctx, t, 2*patience, "all GPUs are allocatable", hasAllocatable(n, uuids(gpus)...))
	if took < provenAfter {
		t.Errorf("%s after podgauge's start GPUs are given away of which nobody knew anything", took)
	}
	figureOf(t, "all GPUs are allocatable after the start of a podgauge whose memory was garbage", 30*time.Second, time.Since(begin))
	if said := d.logged(t, "level=WARN", "health.json", "checked before it is trusted"); len(said) != 1 {
		t.Errorf("of that it says %q", said)
	}
	if aside, err := os.ReadFile(file + ".bad"); err != nil || string(aside) != garbage {
		t.Errorf("set aside is %q, %v", aside, err)
	}
}

// judged is the first scrape that says whether a GPU can be used.
func judged(ctx context.Context, t *testing.T, d *daemon, id string) scrape {
	t.Helper()
	return d.scrapeUntil(ctx, t, "it is said how the GPU is", func(s scrape) error {
		_, err := s.value("nvidia_gpu_healthy", labels{"uuid": id})
		return err
	})
}

// neverAllocatable asks the kubelet over and over for what it would give away, until the returned func is called, which returns how often it
// has answered. The test fails when that includes the GPU.
func neverAllocatable(ctx context.Context, t *testing.T, n *node.Node, id string) (asked func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	count := 0
	given := make(chan error, 1)
	go func() {
		given <- node.Until(ctx, "the kubelet would give it away", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, gpu)
			if err != nil {
				return err
			}
			count++
			if !slices.Contains(ids, id) {
				return fmt.Errorf("it would give away %q", ids)
			}
			return nil
		})
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-given; err == nil {
			t.Errorf("the kubelet would have given %s away", id)
		}
	})
	t.Cleanup(stop)
	return func() int { stop(); return count }
}

// again ends podgauge and starts it anew.
func again(ctx context.Context, t *testing.T, n *node.Node, m *machine, d **daemon, signal syscall.Signal, want []string) {
	t.Helper()
	if _, err := (*d).Stop(ctx, signal); err != nil {
		t.Fatal(err)
	}
	allocatable(ctx, t, n)
	*d = m.start(t, n)
	allocatable(ctx, t, n, want...)
}

// kubeletAgain ends the kubelet and starts it anew.
func kubeletAgain(ctx context.Context, t *testing.T, n *node.Node, signal syscall.Signal, want []string) {
	t.Helper()
	if err := n.StopKubelet(ctx, signal); err != nil {
		t.Fatal(err)
	}
	startKubelet(ctx, t, n)
	allocatable(ctx, t, n, want...)
}
