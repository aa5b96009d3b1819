package podresources_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// node is a kubelet with pods, and what is true about their devices.
type node struct {
	*scriptedKubelet
	random    *rand.Rand
	hasPlugin bool // podgauge is the device plugin, so it sees each Allocate
	running   []nodePod
	// entries are the kubelet's allocations, and so the checkpoint's: the device of
	// an ended pod stays until the next Allocate that may free it.
	entries  map[string]string
	isUp     bool
	listed   podKind   // pods up to this kind are listed
	listedAt time.Time // when the kubelet began to list all pods
	pods     int
	// ended are the ends of pods by device and name. endsKnown is the newest time
	// that podgauge had to know all earlier ends.
	ended     map[[2]string]time.Time
	endsKnown time.Time
	stopRun   func()
}

// podKind is the order in which a restarted kubelet lists pods.
type podKind int

const (
	noPod podKind = iota
	staticPod
	apiPod
)

type nodePod struct {
	name, id string
	kind     podKind
}

var nodeDevices = []string{"a", "b", "c", "d"}

// ownerOf returns the pod that has a device; "" without any.
func (n *node) ownerOf(id string) string {
	for _, p := range n.running {
		if p.id == id {
			return p.name
		}
	}
	return ""
}

func (n *node) publishPods() {
	var pods []*api.PodResources
	for _, p := range n.running {
		if p.kind <= n.listed {
			pods = append(pods, newPod(p.name, p.id))
		}
	}
	if n.listed == apiPod {
		pods = append(pods, newPod(ownPod))
	}
	n.random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	n.setPods(pods...)
}

func (n *node) writeEntries() {
	var list []string
	for id, pod := range n.entries {
		list = append(list, id, pod)
	}
	n.writeCheckpoint(list...)
}

// freeEnded drops the entries of ended pods.
func (n *node) freeEnded() {
	maps.DeleteFunc(n.entries, func(id, _ string) bool { return n.ownerOf(id) == "" })
}

// admit starts a pod on a device that the kubelet takes for unallocated.
func (n *node) admit() {
	kind := []podKind{staticPod, apiPod}[n.random.IntN(2)]
	if !n.isUp || kind > n.listed {
		return
	}
	if n.listed == apiPod {
		n.freeEnded()
	}
	id := nodeDevices[n.random.IntN(len(nodeDevices))]
	if n.entries[id] != "" {
		return
	}
	n.pods++
	p := nodePod{fmt.Sprint("pod-", n.pods), id, kind}
	if n.hasPlugin {
		n.allocate(device.AdvertisedID(id))
	}
	n.entries[id] = p.name
	n.running = append(n.running, p)
	n.publishPods()
	n.writeEntries()
}

// end ends a pod, possibly unknown to the kubelet.
func (n *node) end() {
	if len(n.running) == 0 {
		return
	}
	i := n.random.IntN(len(n.running))
	n.ended[[2]string{n.running[i].id, n.running[i].name}] = time.Now()
	n.running = slices.Delete(n.running, i, i+1)
	n.publishPods()
}

// changeKubelet stops the kubelet, starts it, or lists the next kind of pods.
func (n *node) changeKubelet() {
	switch {
	case n.isUp && n.listed < apiPod:
		n.listed++
		n.listedAt = time.Now()
		n.publishPods()
	case n.isUp:
		n.isUp = false
		n.stop()
	default:
		n.isUp, n.listed = true, noPod
		n.publishPods()
		n.start(0)
		n.writeEntries() // the plugins register
	}
}

func (n *node) step() {
	switch n.random.IntN(9) {
	case 0, 1, 2:
		n.admit()
	case 3, 4:
		n.end()
	case 5, 6:
		n.changeKubelet()
	case 7:
		if n.random.IntN(4) == 0 {
			n.stopRun()
			n.newClient(own)
			n.stopRun = n.run()
		}
	case 8:
		durations := []time.Duration{ms, 100 * ms, time.Second, 11 * time.Second, 70 * time.Second}
		time.Sleep(durations[n.random.IntN(len(durations))])
	}
}

// check compares published allocations with the truth. Without a plugin, they are
// as of a call.
func (n *node) check(a allocation.Snapshot) {
	n.t.Helper()
	// podgauge needs ten seconds from the end of the restart, and two until the next
	// List.
	const delay = 12 * time.Second
	if n.isUp && n.listed == apiPod && time.Since(n.listedAt) > delay {
		n.endsKnown = time.Now().Add(-delay)
	}
	for _, id := range nodeDevices {
		state, owner := stateOf(a, device.ID(id)), n.ownerOf(id)
		ok := state == "pending" || state == "unknown"
		switch {
		case owner != "":
			ok = ok || state == owner
		case state != "unallocated":
			end, hadDevice := n.ended[[2]string{id, state}]
			ok = ok || hadDevice && end.After(n.endsKnown)
		default:
			ok = true
		}
		if !ok {
			n.t.Errorf("device %s: got %s, want owner %q; kubelet up %t, listed %d, complete %t",
				id, state, owner, n.isUp, n.listed, a.Complete)
		}
	}
}

// TestRandomRestarts starts and ends pods and restarts kubelet and podgauge. No
// device has a wrong owner or is wrongly unallocated, and in the end each owner is
// known.
func TestRandomRestarts(t *testing.T) {
	for seed := range uint64(60) {
		inBubble(t, longAgo, own, func(k *scriptedKubelet) {
			n := &node{
				scriptedKubelet: k, random: rand.New(rand.NewPCG(seed, 0)), hasPlugin: seed%2 == 0,
				entries: map[string]string{}, ended: map[[2]string]time.Time{},
				isUp: true, listed: apiPod, stopRun: k.run(),
			}
			defer func() { n.stopRun() }()
			n.publishPods()
			time.Sleep(time.Second)
			for range 80 {
				n.step()
				if n.hasPlugin {
					n.check(n.published())
				}
				if n.random.IntN(2) == 0 {
					n.check(n.list())
				}
			}
			for !n.isUp || n.listed < apiPod {
				n.changeKubelet()
			}
			n.freeEnded()
			n.writeEntries()
			time.Sleep(30 * time.Second)
			for _, id := range nodeDevices {
				want := n.ownerOf(id)
				if want == "" {
					want = "unallocated"
				}
				n.want(id, want)
			}
			if k.t.Failed() {
				k.t.Fatalf("seed %d", seed)
			}
		})
	}
}
