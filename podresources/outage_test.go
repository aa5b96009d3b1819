package podresources

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// Beside another device plugin nobody tells of allocations. What was allocated
// between the last answer and the kubelet's end is in its checkpoint alone.
func TestAllocatedSinceTheLastAnswer(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, k *scripted, c *Client, f file){
		"the kubelet goes": func(t *testing.T, k *scripted, c *Client, f file) {
			f.by("held", "old", "over", "gone", "new", "new")
			k.stop()
			wantState(t, c.Owners(t.Context()), "new", "unnamed") // the first scrape says so
			time.Sleep(time.Minute)
			wantState(t, c.known(), "new", "unnamed")
			k.says()
			k.start(0)
			wantState(t, c.Owners(t.Context()), "new", "unnamed")
		},
		"the kubelet goes while nobody asks": func(t *testing.T, k *scripted, c *Client, f file) {
			f.by("held", "old", "over", "gone", "new", "new")
			k.stop()
			time.Sleep(idleEvery + ms)
			wantState(t, c.known(), "new", "unnamed")
			k.start(0)
		},
		"the kubelet is restarted unnoticed": func(t *testing.T, k *scripted, c *Client, f file) {
			f.by("held", "old", "over", "gone", "new", "new")
			k.says()
			k.restart()
			f.by("new", "new", "held", "old", "over", "gone") // the plugin has registered
			wantState(t, c.Owners(t.Context()), "new", "unnamed")
		},
		"the kubelet hangs": func(t *testing.T, k *scripted, c *Client, f file) {
			k.before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			time.Sleep(time.Minute)
			wantState(t, c.known(), "new", "idle")
			f.by("held", "old", "over", "gone", "new", "new")
			time.Sleep(askTimeout + lostEvery + ms)
			wantState(t, c.known(), "new", "unnamed")
			k.before(nil)
		},
		"what came and went is written down still": func(t *testing.T, k *scripted, c *Client, f file) {
			f.by("held", "old", "over", "gone", "new", "went")
			k.says(pod("old", "held"), pod("went", "new"))
			time.Sleep(idleEvery)
			wantState(t, c.known(), "new", "held by went")
			k.says(pod("old", "held"))
			time.Sleep(2 * idleEvery)
			k.stop()
			wantState(t, c.Owners(t.Context()), "new", "idle")
			k.start(0)
		},
		"what was over is another's": func(t *testing.T, k *scripted, c *Client, f file) {
			f.by("held", "old", "over", "gone", "new", "new")
			c.Owners(t.Context())
			time.Sleep(2 * idleEvery)
			wantState(t, c.known(), "new", "idle") // List does not have it
			f.by("held", "old", "over", "gone", "new", "newer")
			k.stop()
			wantState(t, c.Owners(t.Context()), "new", "unnamed")
			k.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFile(t)
			f.by("held", "old", "over", "gone")
			bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
				f.t, c.Checkpoint = t, f.path
				os.Chtimes(f.path, time.Now(), time.Now().Add(-time.Hour))
				k.says(pod("old", "held"))
				defer c.runs(t)()
				time.Sleep(time.Minute + 3*time.Second)
				wantState(t, c.known(), "new", "idle")
				play(t, k, c, f)

				steady := func() {
					t.Helper()
					wantState(t, c.known(), "held", "held by old")
					wantState(t, c.known(), "over", "idle") // whenever it is written down
				}
				steady()
				time.Sleep(idleEvery)
				k.says(pod("old", "held"), pod("came", "new"))
				time.Sleep(idleEvery)
				wantState(t, c.known(), "new", "held by came")
				steady()
				k.says(pod("old", "held"))
				time.Sleep(idleEvery)
				wantState(t, c.known(), "new", "idle")
				steady()
			})
		})
	}
}

// Until the next kubelet is to be believed, an allocation of the outage stays. It
// goes on where its pod is there, and is over where it is not.
func TestAnAllocationOfAnOutageThatIsNeverNamed(t *testing.T) {
	for name, test := range map[string]struct {
		pods func(k *scripted)
		want string
	}{
		"its pod is there":    {func(k *scripted) { k.says(pod("old", "held"), pod("init")) }, "unnamed"},
		"its pod has ended":   {func(k *scripted) { k.says(pod("old", "held")) }, "idle"},
		"its pod came before": {func(k *scripted) { k.says(pod("old", "held"), pod("before")) }, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, _ *lines) {
				f.by("held", "old")
				k.says(pod("old", "held"), pod("before"))
				time.Sleep(time.Minute)
				f.by("held", "old", "new", "init")
				k.stop()
				test.pods(k)
				time.Sleep(time.Minute)
				k.start(0)
				time.Sleep(settleAfter - lostEvery - connectFor)
				wantState(t, c.known(), "new", "unnamed")
				time.Sleep(time.Hour)
				wantState(t, c.known(), "new", test.want)
			})
		})
	}
}

// What cannot be had: where the checkpoint cannot be read, an idle device stays
// idle through the outage.
func TestAnOutageWithoutACheckpoint(t *testing.T) {
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, _ *lines) {
		f.is("broken")
		k.stop()
		time.Sleep(time.Minute)
		wantState(t, c.known(), "new", "idle")
	})
}

// The first notes that are read are those of the outage.
func TestAnOutageAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		age  time.Duration
		file func(f file)
		want string
	}{
		"written before the answer": {age, func(file) {}, "idle"},
		"written after it":          {age, func(f file) { f.has("a") }, "unnamed"},
		"nothing is called idle":    {0, func(f file) { f.has("a") }, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFile(t)
			bubble(t, test.age, func(t *testing.T, k *scripted, c *Client) {
				f.t, c.Checkpoint = t, f.path
				f.has("a")
				time.Sleep(stampedLate)
				c.Owners(t.Context())
				time.Sleep(ms)
				test.file(f)
				k.stop()
				wantState(t, c.Owners(t.Context()), "a", test.want)
			})
		})
	}
}

// The same with the simulated kubelet's own checkpoint.
func TestTheSimulatedKubeletEndsAfterAnAdmission(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{})
	offers(t, k, gpu, healthy("a")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	c.Checkpoint = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(c.Checkpoint, past, past); err != nil {
		t.Fatal(err)
	}
	wantState(t, c.Owners(t.Context()), "a", "idle")
	c.readCheckpoint()
	runs(t, k, podOn("one", 1))
	wantState(t, c.known(), "a", "idle") // nobody has asked since
	hold := make(chan struct{})
	k.Trouble(kubelet.Trouble{HoldStatic: hold})
	var down device.Holders
	if err := k.Restart(t.Context(), kubelet.RestartOptions{While: func() { down = c.Owners(t.Context()) }}); err != nil {
		t.Fatal(err)
	}
	wantState(t, down, "a", "unnamed")
	h := c.Owners(t.Context())
	if h.Err != nil {
		t.Error(h.Err)
	}
	wantState(t, h, "a", "unnamed") // it lists nobody yet
	close(hold)
	await(t, k, func(s kubelet.State) bool { return s.PodsRead })
	wantState(t, c.Owners(t.Context()), "a", "held by one")
}
