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
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// replicas of a GPU, by id.
func replicas(id string, n int) []string {
	all := []string{}
	for i := range n {
		all = append(all, fmt.Sprintf("%s::%d", id, i))
	}
	return all
}

// configFile is a folder as the kubelet mounts a ConfigMap: the file is a link through ..data, which is replaced by a rename.
type configFile struct {
	dir      string
	versions int
}

// newConfig is a ConfigMap with this content.
func newConfig(t *testing.T, n *node.Node, content string) *configFile {
	t.Helper()
	c := &configFile{dir: filepath.Join(n.Logs, "config")}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/config.yaml", c.path()); err != nil {
		t.Fatal(err)
	}
	c.write(t, content)
	return c
}

func (c *configFile) path() string { return filepath.Join(c.dir, "config.yaml") }

// write replaces the content as the kubelet does.
// https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/util/atomic_writer.go
func (c *configFile) write(t *testing.T, content string) {
	t.Helper()
	c.versions++
	version, fresh, data := fmt.Sprintf("..version-%d", c.versions), filepath.Join(c.dir, "..data_tmp"), filepath.Join(c.dir, "..data")
	old, _ := os.Readlink(data)
	err := errors.Join(os.Mkdir(filepath.Join(c.dir, version), 0o755),
		os.WriteFile(filepath.Join(c.dir, version, "config.yaml"), []byte(content), 0o644),
		os.Symlink(version, fresh), os.Rename(fresh, data))
	if old != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.dir, old)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// slicing is a config with so many replicas of each GPU; more are further lines of timeSlicing.
func slicing(replicas int, more ...string) string {
	text := "version: v1\nsharing:\n  timeSlicing:\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	return text + fmt.Sprintf("    resources:\n    - {name: %s, replicas: %d}\n", gpu, replicas)
}

// shares says where a scrape is wrong about a GPU that these pods share, each by a replica: the GPU's own series name none of them.
func shares(s scrape, id string, pods map[string]node.Pod) error {
	wrong := []error{s.honestButInfo()}
	for _, family := range heldFamilies {
		if found := find(s.series[family], labels{"uuid": id}); len(found) != 1 {
			wrong = append(wrong, fmt.Errorf("%s is there %d times", family, len(found)))
		}
	}
	wrong = append(wrong, s.is(float64(min(1, len(pods))), "nvidia_gpu_allocated", labels{"uuid": id}))
	for replica, pod := range pods {
		with := labelsOf(holder(pod))
		with["uuid"], with["device_id"], with["resource"], with["mig_uuid"] = id, replica, gpu, ""
		wrong = append(wrong, s.is(1, "nvidia_gpu_allocation_info", with))
	}
	if n := len(s.series["nvidia_gpu_allocation_info"]); n != len(pods) {
		wrong = append(wrong, fmt.Errorf("nvidia_gpu_allocation_info is there %d times", n))
	}
	return errors.Join(wrong...)
}

// honestButInfo says which series name a holder, but for those that are about each.
func (s scrape) honestButInfo() error {
	others := scrape{series: map[string][]node.Sample{}}
	for name, samples := range s.series {
		if name != "nvidia_gpu_allocation_info" && !strings.HasPrefix(name, ofContainers) {
			others.series[name] = samples
		}
	}
	return others.honest(nil)
}

// TestTimeSlicing has four pods on one GPU, and a fifth that asks for too much.
func TestTimeSlicing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	config := newConfig(t, n, slicing(4, "failRequestsGreaterThanOne: true"))
	d := newMachine(t, n, "gpus 1").start(t, n, "--config-file="+config.path())
	offers(ctx, t, n, resources{gpu: replicas(uuid(0), 4)})

	greedy := asks("greedy", gpu, 2)
	refused(ctx, t, n, greedy, "UnexpectedAdmissionError", "is shared, and a container may have one such device, not 2", uuid(0)+"::")
	d.scrapeUntil(ctx, t, "the refusal is counted", func(s scrape) error {
		return errors.Join(s.is(1, "podgauge_plugin_refusals_total", labels{"resource": gpu, "reason": "too_many"}), refusals(s, 1))
	})
	if said := d.logged(t, "refuse a container", uuid(0)+"::", "not 2"); len(said) != 1 {
		t.Errorf("the refusal is said %d times: %q", len(said), said)
	}

	pods := map[string]node.Pod{}
	for i := range 4 {
		pod := asks(fmt.Sprintf("share-%d", i), gpu, 1)
		run(ctx, t, n, pod)
		replica := gets(ctx, t, n, pod)[0]
		if pods[replica].Name != "" {
			t.Errorf("%s has %s, too", pod.Name, replica)
		}
		pods[replica] = pod
		sees(ctx, t, n, pod, uuid(0))
	}
	if err := shares(d.next(ctx, t), uuid(0), pods); err != nil {
		t.Error(err)
	}
	refused(ctx, t, n, asks("fifth", gpu, 1), "UnexpectedAdmissionError", "Requested: 1, Available: 0")
	for replica, pod := range pods {
		remove(ctx, t, n, pod)
		delete(pods, replica)
	}
	d.scrapeUntil(ctx, t, "the GPU is idle", func(s scrape) error { return shares(s, uuid(0), nil) })
}

// TestDistinct has a container ask for two GPUs where one is shared, which is refused, and get one of each when a second GPU has come.
func TestDistinct(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	config := newConfig(t, n, slicing(3))
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--config-file="+config.path(), "--shared-devices-allocation-policy=distinct")
	offers(ctx, t, n, resources{gpu: replicas(uuid(0), 3)})
	pair := asks("pair", gpu, 2)
	refused(ctx, t, n, pair, "UnexpectedAdmissionError", "is of the same GPU as", uuid(0)+"::")
	d.scrapeUntil(ctx, t, "the refusal is counted", func(s scrape) error {
		return errors.Join(s.is(1, "podgauge_plugin_refusals_total", labels{"resource": gpu, "reason": "same_gpu"}), refusals(s, 1))
	})
	begin := time.Now()
	m.set(t, "gpus 2")
	offers(ctx, t, n, resources{gpu: slices.Concat(replicas(uuid(0), 3), replicas(uuid(1), 3))})
	figureOf(t, "a GPU that is put in is among the kubelet's", 15*time.Second, time.Since(begin))
	run(ctx, t, n, pair)
	gets(ctx, t, n, pair)
	sees(ctx, t, n, pair, strings.Join(uuids(2), ","))
}

// refusals says where the number of them is another.
func refusals(s scrape, want float64) error {
	if got := s.sum("podgauge_plugin_refusals_total", nil); got != want {
		return fmt.Errorf("%v containers were refused, not %v", got, want)
	}
	return nil
}

// TestConfigChanges shares a GPU that is held, without a restart of anything.
func TestConfigChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	config := newConfig(t, n, "version: v1\n")
	d := newMachine(t, n, "gpus 2").start(t, n, "--config-file="+config.path())
	offers(ctx, t, n, resources{gpu: uuids(2)})
	old := asks("old", gpu, 1)
	before, _ := run(ctx, t, n, old)
	held := gets(ctx, t, n, old)[0]
	holding := map[string]node.Holder{held: holder(old)}
	d.scrapeUntil(ctx, t, "the holder is shown", func(s scrape) error { return s.tells(uuids(2), holding) })
	registered := registrations(ctx, t, d)
	stays := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s scrape) error { return s.tells(uuids(2), holding) })

	begin := time.Now()
	config.write(t, slicing(4))
	// What is held stays on the list, as healthy as it is: the kubelet would call it healthy whatever happens to it.
	shared := slices.Concat([]string{held}, replicas(uuid(0), 4), replicas(uuid(1), 4))
	slices.Sort(shared)
	offers(ctx, t, n, resources{gpu: shared})
	figureOf(t, "from a config's rename to four replicas of each GPU at the kubelet", 3*time.Second, time.Since(begin))
	stays.stop(t)
	if now := registrations(ctx, t, d); now != registered {
		t.Errorf("%v registrations, and then %v", registered, now)
	}

	pods := map[string]node.Pod{}
	for i := range 4 {
		pod := asks(fmt.Sprintf("new-%d", i), gpu, 1)
		run(ctx, t, n, pod)
		pods[gets(ctx, t, n, pod)[0]] = pod
	}
	for replica, pod := range pods {
		id, _, _ := strings.Cut(replica, "::")
		sees(ctx, t, n, pod, id)
	}
	s := d.next(ctx, t)
	for replica, pod := range pods {
		id, _, _ := strings.Cut(replica, "::")
		with := labelsOf(holder(pod))
		with["uuid"], with["device_id"] = id, replica
		if err := s.is(1, "nvidia_gpu_allocation_info", with); err != nil {
			t.Error(err)
		}
	}
	with := labelsOf(holder(old))
	with["uuid"], with["device_id"] = held, held
	if err := errors.Join(s.is(1, "nvidia_gpu_allocation_info", with), runsOn(ctx, n, old, before)); err != nil {
		t.Error(err)
	}
	stands(ctx, t, n, d, config, resources{gpu: shared})
	if err := runsOn(ctx, n, old, before); err != nil {
		t.Error(err)
	}
	remove(ctx, t, n, old)
	offers(ctx, t, n, resources{gpu: slices.Concat(replicas(uuid(0), 4), replicas(uuid(1), 4))})
	rereads(ctx, t, n, d, config, pods)
	oneKubelet(t, n)
}

// stands writes an invalid config: podgauge rejects it with one log line and keeps the device list.
func stands(ctx context.Context, t *testing.T, n *node.Node, d *daemon, config *configFile, offered resources) {
	t.Helper()
	config.write(t, strings.Replace(slicing(2), "replicas: 2", "replicas: two", 1))
	await(ctx, t, "the config is refused", func(context.Context) error {
		if lines := d.logged(t, "config refused", "replicas"); len(lines) != 1 {
			return fmt.Errorf("it says %q", lines)
		}
		return nil
	})
	await(ctx, t, "it was looked at thrice more", since(time.Now(), 3*time.Second))
	if lines := d.logged(t, "config refused"); len(lines) != 1 {
		t.Errorf("an invalid config is said %d times: %q", len(lines), lines)
	}
	if err := errors.Join(hasResources(n, offered)(ctx), d.probe(ctx, "/healthz"), ready(ctx, d)); err != nil {
		t.Error(err)
	}
}

// rereads changes the config to one GPU that is not shared, and asks podgauge to look at once. What is held stays, and the GPU, which is to be had
// alone from now on, is given to nobody before its replicas are let go of.
func rereads(ctx context.Context, t *testing.T, n *node.Node, d *daemon, config *configFile, pods map[string]node.Pod) {
	t.Helper()
	config.write(t, "version: v1\npodgauge:\n  select:\n    include: [1]\n")
	begin := time.Now()
	if err := d.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	held := slices.Sorted(maps.Keys(pods))
	await(ctx, t, "the new config holds", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpu)
		if len(ids) != len(held) {
			return fmt.Errorf("%q are allocatable: %w", ids, err)
		}
		return nil
	})
	figureOf(t, "from SIGHUP to the new config at the kubelet", 500*time.Millisecond, time.Since(begin))
	offers(ctx, t, n, resources{gpu: held})
	var left []string
	for _, replica := range held {
		if id, _, _ := strings.Cut(replica, "::"); id == uuid(1) {
			remove(ctx, t, n, pods[replica])
		} else {
			left = append(left, replica)
		}
	}
	if len(left) == len(held) {
		t.Fatalf("none of %q is a replica of %s", held, uuid(1))
	}
	left = append(left, uuid(1))
	slices.Sort(left)
	offers(ctx, t, n, resources{gpu: left})
}
