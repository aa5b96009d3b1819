package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// slice is a slice with what the driver says of it.
type slice struct {
	migSlice
	used   int // bytes
	active int // percent of the cycles of its GPU instance's multiprocessors
}

func (s slice) lines() []string {
	return []string{fmt.Sprintf("%s used %d", s.line(), s.used), fmt.Sprintf("gpu %d metric 2/%d %d", s.gpu, s.gi, s.active)}
}

// TestSlices has each of two slices with a GPU instance of its own, and two that share one, say what they use: to the pod that holds them.
func TestSlices(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	big := slice{migSlice{0, 0, "3g.40gb", 1, 0}, 4096 * mebibyte, 75}
	little := slice{migSlice{0, 1, "1g.10gb", 7, 0}, 1024 * mebibyte, 25}
	half := slice{migSlice{0, 2, "1c.3g.40gb", 2, 0}, 2048 * mebibyte, 50}
	rest := slice{migSlice{0, 3, "2c.3g.40gb", 2, 1}, 2048 * mebibyte, 50} // says what the other does
	all := []string{"gpus 1", "gpu 0 model h100", "gpu 0 mig_mode 1", "gpu 0 metric 2 60"}
	for _, s := range []slice{big, little, half, rest} {
		all = append(all, s.lines()...)
	}
	m := newMachine(t, n, all...)
	d := m.start(t, n, "--mig-strategy=mixed", "--pod-logs-dir="+n.PodLogs())
	offered, pods := resources{}, map[string]node.Pod{}
	for name, s := range map[string]slice{"big": big, "little": little, "half": half, "rest": rest} {
		resource := "nvidia.com/mig-" + s.profile
		offered[resource] = []string{s.uuid()}
		pods[name] = asks(name, resource, 1)
	}
	offers(ctx, t, n, offered)
	for _, pod := range pods {
		run(ctx, t, n, pod)
		gets(ctx, t, n, pod)
	}
	m.set(t, fmt.Sprintf("gpu 0 process %d %d gi 7 ci 0", processes(ctx, t, n, pods["little"], "main", 1)[0], 768*mebibyte))
	d.next(ctx, t) // from here on there is something to compare with

	s := d.scrapeUntil(ctx, t, "each slice says what it uses", func(s scrape) error {
		return errors.Join(busy(s, big, holder(pods["big"])), busy(s, little, holder(pods["little"])), busy(s, half, node.Holder{}), unsaid(s, rest),
			near(s, .6, "nvidia_gpu_sm_active_ratio", labels{"mig_uuid": ""}), usesSlice(s, little, holder(pods["little"])))
	})
	active := func(id string) float64 { return s.sum("nvidia_gpu_sm_active_ratio", labels{"mig_uuid": id}) }
	figure(t, "active multiprocessors", fmt.Sprintf("of two slices with an instance of their own %.2f and %.2f, of two that share one %.2f together, of the GPU %.2f",
		active(big.uuid()), active(little.uuid()), active(half.uuid()), active("")))
	remove(ctx, t, n, pods["rest"])
	d.scrapeUntil(ctx, t, "a GPU instance has one holder", func(s scrape) error { return busy(s, half, holder(pods["half"])) })
	remove(ctx, t, n, pods["big"])
	if err := errors.Join(busy(d.next(ctx, t), big, node.Holder{}), oneHolder(ctx, n, little, pods["little"])); err != nil {
		t.Error(err)
	}
	oneKubelet(t, n)
}

// busy says where a scrape is wrong about what is read of a slice, which is due to this holder.
func busy(s scrape, of slice, h node.Holder) error {
	with := labelsOf(h)
	with["uuid"], with["mig_uuid"] = uuid(of.gpu), of.uuid()
	return errors.Join(s.is(float64(of.used), "nvidia_gpu_memory_used_bytes", with), near(s, float64(of.active)/100, "nvidia_gpu_sm_active_ratio", with))
}

// near is scrape.is for what is computed from two samples.
func near(s scrape, want float64, name string, with labels) error {
	got, err := s.value(name, with)
	if err == nil && math.Abs(got-want) > 1e-6 {
		err = fmt.Errorf("%s%v is %v, not %v", name, with, got, want)
	}
	return err
}

// unsaid says that a slice has readings of its own, which are another's too: sums would have them twice.
func unsaid(s scrape, of slice) error {
	for _, family := range []string{"nvidia_gpu_memory_used_bytes", "nvidia_gpu_sm_active_ratio"} {
		if found := find(s.series[family], labels{"mig_uuid": of.uuid()}); len(found) > 0 {
			return fmt.Errorf("%s of a slice that shares its instance: %v", family, found)
		}
	}
	return nil
}

// usesSlice says where a scrape is wrong about the one process on a slice, of which the driver tells only the memory.
func usesSlice(s scrape, of slice, h node.Holder) error {
	with := labelsOf(h)
	with["mig_uuid"] = of.uuid()
	nobody := labels{"mig_uuid": of.uuid(), "pod": ""}
	wrong := []error{
		s.is(768*mebibyte, ofContainers+"memory_used_bytes", with), s.is(1, ofContainers+"processes", with),
		s.is(256*mebibyte, ofNobody+"memory_used_bytes", nobody), s.is(0, ofNobody+"processes", nobody),
	}
	if found := s.series[ofContainers+"sm_utilization_ratio"]; len(found) > 0 {
		wrong = append(wrong, fmt.Errorf("of slices nobody tells %v", found))
	}
	return errors.Join(wrong...)
}

// oneHolder says where the kubelet disagrees.
func oneHolder(ctx context.Context, n *node.Node, of slice, pod node.Pod) error {
	holders, err := n.Holders(ctx, "nvidia.com/mig-"+of.profile)
	if err == nil && holders[of.uuid()] != holder(pod) {
		err = fmt.Errorf("the kubelet says that %s is held by %v", of.uuid(), holders)
	}
	return err
}
