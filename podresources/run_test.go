package podresources

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const ms = time.Millisecond

func TestRunLooksForTheNameOfAnAllocation(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		c.Allocated(gpu, []device.OfferedID{"a"})
		wantState(t, c.known(), "a", "unnamed")
		time.Sleep(20 * time.Second)
		want := []time.Duration{50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms, 5150 * ms, 7150 * ms, 9150 * ms}
		got := k.since(begin)
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Fatalf("List was asked after %v, want %v", got, want)
		}
		if rest := got[len(want):]; len(rest) > 2 {
			t.Errorf("List was asked after %v when looking had an end", rest)
		}
	})
}

// A List beneath an Allocate can have the kubelet give a device away twice.
func TestTheKubeletIsNotAskedBeneathAnAllocate(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		c.Owners(t.Context())
		time.Sleep(time.Second)
		granted := time.Now()
		c.Allocated(gpu, []device.OfferedID{"a"})
		k.says(pod("one", "a"))
		wantState(t, c.Owners(t.Context()), "a", "held by one")
		if after := k.since(granted); len(after) != 1 || after[0] < notedWithin {
			t.Errorf("it was asked %v after Allocate", after)
		}
		ctx, cancel := context.WithTimeout(t.Context(), notedWithin/2)
		defer cancel()
		c.Allocated(gpu, []device.OfferedID{"a"})
		begin := time.Now()
		c.Owners(ctx)
		if took := time.Since(begin); took > notedWithin/2 {
			t.Errorf("a caller with little time waited %s", took)
		}
	})
}

func TestRunStopsLookingWhenNamed(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		c.Allocated(gpu, []device.OfferedID{"a", "b"})
		time.Sleep(100 * ms)
		k.says(pod("one", "a"))
		time.Sleep(100 * ms) // asked at 150 ms
		wantState(t, c.known(), "a", "held by one")
		wantState(t, c.known(), "b", "unnamed")
		k.says(pod("one", "a"), pod("two", "b"))
		time.Sleep(9 * time.Second)
		wantState(t, c.known(), "b", "held by two")
		if got, want := k.since(begin), []time.Duration{50 * ms, 150 * ms, 350 * ms}; !slices.Equal(got, want) {
			t.Errorf("List was asked after %v, want %v", got, want)
		}
	})
}

// A kubelet admits pods one after the other, as fast as their plugins answer.
func TestABurstOfAllocationsPutsNoLookOff(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		for i := range 50 {
			c.Allocated(gpu, []device.OfferedID{device.OfferedID(strconv.Itoa(i))})
			time.Sleep(30 * ms)
		}
		got := k.since(begin)
		if len(got) < 10 || got[0] > 50*ms {
			t.Errorf("in 1.5 s of allocations List was asked after %v", got)
		}
		if most := 1500/50 + 1; len(got) > most {
			t.Errorf("List was asked %d times", len(got))
		}
	})
}

func TestAPodThatLivesForTwoSecondsIsNotMissed(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		time.Sleep(15 * time.Second)
		begin := time.Now()
		c.Allocated(gpu, []device.OfferedID{"a"})
		time.Sleep(20 * ms) // the kubelet's own bookkeeping
		k.says(pod("short", "a"))
		time.Sleep(2 * time.Second)
		k.says()
		time.Sleep(13 * time.Second)
		known := c.known()
		wantState(t, known, "a", "idle")
		if len(known.Recent) != 1 || known.Recent[0].Owner != owner("short") || known.Recent[0].Last.Sub(begin) > 3*time.Second {
			t.Errorf("the last holders are %v", known.Recent)
		}
	})
}

func TestTheOldHolderIsGoneWithTheAllocation(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("old", "a", "b"))
		wantState(t, c.Owners(t.Context()), "a", "held by old")
		_, changed := c.Look()

		release := make(chan struct{})
		k.before(func(context.Context) error { <-release; return nil })
		answer := make(chan device.Holders)
		go func() { answer <- c.Owners(t.Context()) }()
		synctest.Wait() // it is asked

		time.Sleep(time.Millisecond)
		c.Allocated(gpu, []device.OfferedID{"a"})
		select {
		case <-changed:
		default:
			t.Error("the change was not told")
		}
		wantState(t, c.known(), "a", "unnamed")
		wantState(t, c.known(), "b", "held by old")
		close(release)
		wantState(t, <-answer, "a", "unnamed") // an answer from before brings nobody back

		k.says(pod("old", "b"), pod("new", "a"))
		wantState(t, c.Owners(t.Context()), "a", "held by new")
	})
}

func TestAHangingListEndsWithItsCaller(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", "a"))
		at := c.Owners(t.Context()).At
		k.before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		for _, budget := range []time.Duration{300 * ms, 0} {
			ctx, want := t.Context(), askTimeout
			if budget > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, budget)
				defer cancel()
				want = budget
			}
			begin := time.Now()
			h := c.Owners(ctx)
			if took := time.Since(begin); took != want {
				t.Errorf("it took %s, want %s", took, want)
			}
			wantState(t, h, "a", "held by one")
			if status.Code(h.Err) != codes.DeadlineExceeded || !h.At.Equal(at) {
				t.Errorf("Err is %v, At %s after the answer", h.Err, h.At.Sub(at))
			}
		}
		k.before(nil)
		if h := c.Owners(t.Context()); h.Err != nil || !h.At.After(at) {
			t.Errorf("after the hang Err is %v, At %s", h.Err, h.At.Sub(at))
		}
	})
}

// Whoever waits behind a question that hangs has his own deadline.
func TestNobodyWaitsForAnothersQuestion(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", "a"))
		c.Owners(t.Context())
		k.before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		var others sync.WaitGroup
		defer others.Wait()
		others.Go(func() { c.Owners(t.Context()) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		h := c.Owners(ctx)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %s", took)
		}
		wantState(t, h, "a", "held by one")
		if !errors.Is(h.Err, context.DeadlineExceeded) {
			t.Errorf("Err is %v", h.Err)
		}
		c.Allocated(gpu, []device.OfferedID{"a"}) // nor does the kubelet's Allocate
		if took := time.Since(begin); took != time.Second {
			t.Errorf("Allocated took %s", took-time.Second)
		}
	})
}

func TestACallerWhoGivesUpSaysNothingOfTheKubelet(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", "a"))
		c.Owners(t.Context())
		k.before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*ms, cancel)
		if h := c.Owners(ctx); h.Err == nil {
			t.Error("an answer came")
		}
		if err := c.known().Err; err != nil {
			t.Errorf("Err is %v for everybody", err)
		}
	})
}

// The kubelet's state is a number that grows with each question, and the answers
// take their time: whoever asks gets what was true after he asked, and nobody
// sees the number fall.
func TestAnswersAreTakenInTheirOrder(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		var questions, seen atomic.Int64
		k.before(func(context.Context) error {
			n := questions.Add(1)
			// Answers overtake each other where they can.
			time.Sleep(rand.N(100 * ms))
			k.says(pod(strconv.FormatInt(n, 10), "a"))
			return nil
		})
		var askers sync.WaitGroup
		defer askers.Wait()
		for range 8 {
			askers.Go(func() {
				for range 30 {
					time.Sleep(rand.N(150 * ms))
					before, asked := seen.Load(), questions.Load()
					_, o := c.Owners(t.Context()).Of("a")
					n, err := strconv.ParseInt(o.Pod, 10, 64)
					if err != nil || n < before || n < asked {
						t.Errorf("the answer is %q when %d was seen and %d asked for", o.Pod, before, asked)
					}
					for s := seen.Load(); s < n && !seen.CompareAndSwap(s, n); s = seen.Load() {
					}
				}
			})
		}
	})
}

func TestWaitingCallersShareOneAnswer(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.before(func(context.Context) error { time.Sleep(100 * ms); return nil })
		var askers sync.WaitGroup
		begin := time.Now()
		for i := range 10 {
			askers.Go(func() {
				time.Sleep(time.Duration(i) * ms)
				if h := c.Owners(t.Context()); h.Err != nil {
					t.Error(h.Err)
				}
			})
		}
		askers.Wait()
		if got, want := k.since(begin), []time.Duration{0, 100 * ms}; !slices.Equal(got, want) {
			t.Errorf("List was asked after %v, want %v", got, want)
		}
	})
}

func TestARefusedClientWaits(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", "a"))
		c.Owners(t.Context())
		refuse := func(context.Context) error { return status.Error(codes.ResourceExhausted, "rejected by rate limit") }
		hammer := func(d time.Duration) []time.Duration {
			time.Sleep(ms)
			begin := time.Now()
			for time.Since(begin) < d {
				time.Sleep(10 * ms)
				h := c.Owners(t.Context())
				wantState(t, h, "a", "held by one")
				if h.Err == nil || status.Code(h.Err) != codes.ResourceExhausted {
					t.Fatalf("Err is %v", h.Err)
				}
			}
			asked := k.since(begin)
			for i := len(asked) - 1; i > 0; i-- {
				asked[i] -= asked[i-1]
			}
			return asked[1:]
		}
		k.before(refuse)
		want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}
		if got := hammer(20 * time.Second); !slices.Equal(got, want) {
			t.Errorf("asked again after %v, want %v", got, want)
		}
		if _, err := c.askPod(t.Context(), podName{"team", "one"}); status.Code(err) != codes.ResourceExhausted || len(k.got) != 0 {
			t.Errorf("Get is asked all the same: %v, about %q", err, k.got)
		}
		time.Sleep(refusedMost)
		k.before(nil)
		if h := c.Owners(t.Context()); h.Err != nil {
			t.Fatal(h.Err)
		}
		k.before(refuse)
		if got := hammer(500 * ms); !slices.Equal(got, want[:2]) {
			t.Errorf("after an answer asked again after %v, want %v", got, want[:2])
		}
	})
}

func TestAnOutageIsLoggedOnce(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		var log lines
		c.log = log.log()
		stop := c.runs(t)
		defer stop()
		k.says(pod("one", "a"))
		var scrapes sync.WaitGroup
		defer scrapes.Wait()
		scrapes.Go(func() { // others meet most of it first
			for range 200 {
				time.Sleep(300 * ms)
				c.Owners(t.Context())
			}
		})
		for round := range 2 {
			time.Sleep(5 * time.Second)
			k.stop()
			time.Sleep(5 * time.Second)
			k.before(func(context.Context) error { return status.Error(codes.ResourceExhausted, "rejected by rate limit") })
			k.start(0)
			time.Sleep(5 * time.Second)
			k.before(nil)
			time.Sleep(10 * time.Second)
			said := log.String()
			if lost, found := strings.Count(said, "level=WARN"), strings.Count(said, "level=INFO"); lost != round+1 || found != round+1 {
				t.Fatalf("after %d outages the log is\n%s", round+1, said)
			}
			wantState(t, c.known(), "a", "held by one")
		}
	})
}

// A client and a kubelet that start together know nothing but what is named.
func TestAKubeletIsTrustedWhenItIsAMinuteOld(t *testing.T) {
	bubble(t, 0, func(t *testing.T, k *scripted, c *Client) {
		wantState(t, c.Owners(t.Context()), "a", "unknown")
		k.says(pod("one", "a"))
		h := c.Owners(t.Context())
		wantState(t, h, "a", "held by one")
		wantState(t, h, "b", "unknown")
		time.Sleep(40 * time.Second)
		k.restart() // its minute begins anew
		time.Sleep(settleAfter - time.Millisecond)
		wantState(t, c.Owners(t.Context()), "b", "unknown")
		_, changed := c.Look()
		time.Sleep(time.Millisecond)
		wantState(t, c.Owners(t.Context()), "b", "idle")
		select {
		case <-changed:
		default:
			t.Error("the change was not told")
		}
		k.restart() // once it has settled, what is idle stays so
		h = c.Owners(t.Context())
		wantState(t, h, "a", "held by one")
		wantState(t, h, "b", "idle")
	})
}

func TestAnOldKubeletIsTrustedAtOnce(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		wantState(t, c.known(), "a", "unknown")
		wantState(t, c.Owners(t.Context()), "a", "idle")
	})
}

func TestHoldersStandAfterARestart(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		all := []string{"static", "moved", "replaced", "left", "lost"}
		for _, name := range all {
			k.pods = append(k.pods, pod(name, "gpu-"+name))
		}
		at := c.Owners(t.Context()).At
		check := func(want map[string]string) {
			t.Helper()
			h := c.Owners(t.Context())
			for _, name := range all {
				w := "held by " + name
				if other, ok := want[name]; ok {
					w = other
				}
				wantState(t, h, device.ID("gpu-"+name), w)
			}
		}
		k.stop()
		time.Sleep(3 * time.Second)
		check(nil)
		if h := c.known(); h.Err == nil || !h.At.Equal(at) {
			t.Errorf("while the kubelet is away Err is %v, At %s after the answer", h.Err, h.At.Sub(at))
		}
		k.says()
		k.start(0)
		check(nil)
		k.says(pod("static", "gpu-static"))
		check(nil)
		k.says(pod("static", "gpu-static"), pod("moved", "gpu-replaced"), pod("left"))
		want := map[string]string{"moved": "idle", "replaced": "held by moved", "left": "idle"}
		check(want)
		k.says() // what this kubelet has named once, it would name again
		want["static"], want["replaced"] = "idle", "idle"
		check(want)
		time.Sleep(settleAfter)
		want["lost"] = "idle"
		check(want)
	})
}

// The question that makes the connection was asked before there was one.
func TestAPodThatEndsAfterItsFirstNamingIsGoneAtOnce(t *testing.T) {
	for _, age := range []time.Duration{0, time.Hour} {
		t.Run(age.String(), func(t *testing.T) {
			bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
				k.says(pod("one", "a"), pod("two", "b"))
				k.slow = 30 * ms
				wantState(t, c.Owners(t.Context()), "a", "held by one")
				k.says(pod("two", "b"))
				h := c.Owners(t.Context())
				wantState(t, h, "a", map[bool]string{true: "unknown", false: "idle"}[age == 0])
				wantState(t, h, "b", "held by two")
			})
		})
	}
}

// An answer that the old kubelet gave with its last breath says nothing of the new
// one's connection.
func TestRunNoticesARestartWhileNobodyAsks(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		k.says(pod("one", "a"))
		time.Sleep(11 * time.Second)
		wantState(t, c.known(), "a", "held by one")
		k.says()
		k.restart()
		time.Sleep(idleEvery + lostEvery) // the first empty answers
		wantState(t, c.known(), "a", "held by one")
		k.says(pod("two", "a"))
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "held by two")
		if err := c.known().Err; err != nil {
			t.Error(err)
		}
	})
}

func TestRunFindsAKubeletThatComesLate(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.stop()
		if c.Ready() == nil {
			t.Error("ready before the kubelet was asked")
		}
		defer c.runs(t)()
		time.Sleep(30 * time.Second)
		if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "List pod resources at") {
			t.Errorf("ready without an answer, or it does not name what is missing: %v", err)
		}
		k.says(pod("one", "a"))
		k.start(0)
		time.Sleep(lostEvery + connectFor)
		wantState(t, c.known(), "a", "held by one")
		k.stop()
		time.Sleep(30 * time.Second)
		if err := c.Ready(); err != nil || c.known().Err == nil {
			t.Errorf("the kubelet is away again, and readiness says %v", err)
		}
		if err := c.Alive(); err != nil {
			t.Error(err)
		}
	})
}

// A connection is tried again for whoever comes, not when gRPC would next do so.
func TestTheFirstQuestionFindsAKubeletThatIsBack(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", "a"))
		k.stop()
		for range 20 {
			time.Sleep(100 * ms)
			if c.Owners(t.Context()).Err == nil {
				t.Fatal("an answer came from nowhere")
			}
		}
		k.start(0)
		if h := c.Owners(t.Context()); h.Err != nil {
			t.Error(h.Err)
		}
	})
}

func TestRunCountsWhatIsAllocatable(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		synctest.Wait()
		if c.allocatable() == nil {
			t.Error("it was not asked for at once")
		}
		time.Sleep(time.Minute)
		before := k.counted()
		for range 20 {
			c.Allocated(gpu, []device.OfferedID{"a"})
			time.Sleep(100 * ms)
		}
		if n := k.counted() - before; n > 3 {
			t.Errorf("in two seconds of looking it was asked for %d times", n)
		}
		time.Sleep(time.Minute)
		if n := k.counted() - before; n < 6 {
			t.Errorf("in a minute it was asked for %d times", n)
		}
	})
}

// What the kubelet would give away follows what it is told, though not each time.
func TestRunCountsAnewWhatTheKubeletIsTold(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		synctest.Wait()
		k.gives(&api.AllocatableResourcesResponse{Devices: []*api.ContainerDevices{{ResourceName: gpu, DeviceIds: []string{"a"}}}})
		c.Told() // right after it was counted
		time.Sleep(countEvery + lookFirst)
		synctest.Wait()
		if n := c.allocatable()[gpu]; n != 1 {
			t.Errorf("%d devices are counted, and the kubelet would give away one", n)
		}
		time.Sleep(time.Minute)
		before := k.counted()
		for range 10 {
			c.Told()
			time.Sleep(100 * ms)
		}
		time.Sleep(2 * countEvery)
		if n := k.counted() - before; n < 2 || n > 3 {
			t.Errorf("it was told ten times in a second, and counted %d times", n)
		}
	})
}

// Counts from before an outage would pass for those of now.
func TestCountsOfEarlierAreNotThoseOfNow(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		defer c.runs(t)()
		time.Sleep(time.Second)
		for range 2 {
			if c.allocatable() == nil {
				t.Error("nothing is allocatable beside a kubelet that says how much is")
			}
			k.stop()
			if h := c.Owners(t.Context()); h.Err == nil || c.allocatable() != nil {
				t.Errorf("the kubelet is away (%v), and allocatable are %v", h.Err, c.allocatable())
			}
			k.start(0)
			time.Sleep(lostEvery + 3*lookFirst) // Run has noticed both, whoever asked
		}
		k.mu.Lock()
		k.countErr = errBroken
		k.mu.Unlock()
		time.Sleep(2 * idleEvery)
		if got := c.allocatable(); got != nil || c.known().Err != nil {
			t.Errorf("the kubelet says nothing of it, and allocatable are %v", got)
		}
	})
}

func TestRunEndsAtOnce(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		var log lines
		c.log = log.log()
		stop := c.runs(t)
		k.before(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		c.Allocated(gpu, []device.OfferedID{"a"})
		time.Sleep(200 * ms)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %s", took)
		}
		if said := log.String(); said != "" {
			t.Errorf("an end is no outage:\n%s", said)
		}
		if h := c.Owners(t.Context()); h.Err == nil {
			t.Error("an answer came over a closed connection")
		}
	})
}

func TestAnOverlongAnswerIsSaidToBeOne(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(pod("one", strings.Repeat("a", maxAnswerBytes)))
		for range 2 { // it is no refusal, but who asks for it again and again is a burden
			if err := c.Owners(t.Context()).Err; err == nil || !strings.Contains(err.Error(), "larger than max") {
				t.Errorf("Err is %v", err)
			}
		}
	})
}
