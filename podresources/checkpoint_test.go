package podresources

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// checkpointJSON was written by a kubelet 1.37 and shortened.
const checkpointJSON = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"6b1c","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["a","b"]},"AllocResp":"CgA="},
	{"PodUID":"6b1c","ContainerName":"init","ResourceName":"nvidia.com/mig","DeviceIDs":{"0":["a"],"1":["a","c"]},"AllocResp":""}
],"RegisteredDevices":{"nvidia.com/gpu":["a","b","d"]}},"Checksum":3816129530}`

func TestParseCheckpoint(t *testing.T) {
	tests := map[string]struct {
		content string
		want    []allocationKey // nil: rejected
	}{
		"as written":              {checkpointJSON, []allocationKey{{gpu, "a"}, {gpu, "b"}, {"nvidia.com/mig", "a"}, {"nvidia.com/mig", "c"}}},
		"no allocation":           {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`, []allocationKey{}},
		"empty list":              {`{"Data":{"PodDeviceEntries":[]}}`, []allocationKey{}},
		"without ids":             {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":{"0":null}}]}}`, []allocationKey{}},
		"keys of a later version": {`{"Version":3,"Data":{"More":[],"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":{"0":["a"]},"More":1}]}}`, []allocationKey{{"r", "a"}}},

		"empty":                                  {"", nil},
		"truncated":                              {checkpointJSON[:len(checkpointJSON)/2], nil},
		"trailing data":                          {checkpointJSON + "}", nil},
		"empty object":                           {`{}`, nil},
		"empty Data":                             {`{"Data":{}}`, nil},
		"an array":                               {`[]`, nil},
		"null":                                   {`null`, nil},
		"entries as an object":                   {`{"Data":{"PodDeviceEntries":{}}}`, nil},
		"entry without ids":                      {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r"}]}}`, nil},
		"entry without resource":                 {`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":["a"]}}]}}`, nil},
		"null entry":                             {`{"Data":{"PodDeviceEntries":[null]}}`, nil},
		"ids without NUMA nodes, as before 1.20": {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["a"]}]}}`, nil},
		"numeric ids":                            {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":{"0":[1]}}]}}`, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseCheckpoint([]byte(test.content))
			if (err == nil) != (test.want != nil) {
				t.Fatalf("got error %v", err)
			}
			for _, a := range test.want {
				if _, ok := got[a]; !ok || len(got) != len(test.want) {
					t.Errorf("allocations: got %v, want %v", got, test.want)
				}
			}
		})
	}
}

func TestParseCheckpointPodUIDs(t *testing.T) {
	got, err := parseCheckpoint([]byte(`{"Data":{"PodDeviceEntries":[
		{"PodUID":"one","ResourceName":"r","DeviceIDs":{"0":["a","both"],"1":["a"]}},
		{"PodUID":"one","ResourceName":"r","DeviceIDs":{"0":["a"]}},
		{"PodUID":"two","ResourceName":"r","DeviceIDs":{"0":["b","both"]}},
		{"ResourceName":"r","DeviceIDs":{"0":["other"]}}
	]}}`))
	want := map[allocationKey]string{{"r", "a"}: "one", {"r", "b"}: "two", {"r", "both"}: "", {"r", "other"}: ""}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("allocations: got %v, %v, want %v", got, err, want)
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add([]byte(checkpointJSON))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":null}}`))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["a"]}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseCheckpoint(b)
		if (err == nil) != (got != nil) {
			t.Fatalf("allocations: %v, error: %v", got, err)
		}
		var theirs struct { // all of checkpoint.Data
			Data struct {
				PodDeviceEntries []struct {
					PodUID, ContainerName, ResourceName string
					DeviceIDs                           map[int64][]device.AdvertisedID
					AllocResp                           []byte
				}
				RegisteredDevices map[string][]string
			}
			Checksum uint64
		}
		if err != nil || json.Unmarshal(b, &theirs) != nil {
			return
		}
		want := map[allocationKey]bool{}
		has := map[allocationKey]bool{}
		for a := range got {
			has[a] = true
		}
		for _, e := range theirs.Data.PodDeviceEntries {
			for _, ids := range e.DeviceIDs {
				for _, id := range ids {
					want[allocationKey{e.ResourceName, id}] = true
				}
			}
		}
		if !maps.Equal(has, want) {
			t.Errorf("allocations: got %v, the kubelet's decoder returns %v", got, want)
		}
	})
}

// checkpointFile is a kubelet's checkpoint that a test writes.
type checkpointFile struct {
	t    *testing.T
	path string
}

func newCheckpointFile(t *testing.T) checkpointFile {
	return checkpointFile{t, filepath.Join(t.TempDir(), CheckpointFile)}
}

// writeIDs writes allocations of gpu with the current time, each of a different pod.
func (f checkpointFile) writeIDs(ids ...string) {
	f.t.Helper()
	var entries []string
	for i, id := range ids {
		entries = append(entries, id, fmt.Sprint(i))
	}
	f.writeEntries(entries...)
}

// writeEntries writes allocations of gpu with the current time, from pairs of an id and a pod's UID.
func (f checkpointFile) writeEntries(ids ...string) {
	f.t.Helper()
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[int][]string
		AllocResp                           []byte
	}
	var content struct {
		Data struct{ PodDeviceEntries []entry }
	}
	for pair := range slices.Chunk(ids, 2) {
		content.Data.PodDeviceEntries = append(content.Data.PodDeviceEntries, entry{pair[1], "main", gpu, map[int][]string{-1: {pair[0]}}, nil})
	}
	b, err := json.Marshal(content)
	if err != nil {
		f.t.Fatal(err)
	}
	f.writeContent(string(b))
}

func (f checkpointFile) writeContent(content string) {
	f.t.Helper()
	hidden := f.path + "~"
	if err := os.WriteFile(hidden, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	now := time.Now() // the bubble's time, not the file system's
	if err := os.Chtimes(hidden, now, now); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(hidden, f.path); err != nil {
		f.t.Fatal(err)
	}
}

// runCheckpointed runs a client with a checkpoint for a minute before the test.
func runCheckpointed(t *testing.T, test func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, log *kubeletLogBuffer)) {
	t.Helper()
	f := newCheckpointFile(t)
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		var log kubeletLogBuffer
		c.options.Log, c.options.CheckpointPath = log.log(), f.path
		defer c.startRun(t)()
		time.Sleep(time.Minute)
		test(t, k, c, f, &log)
	})
}

// TestRejectedAllocationEnds checks that an allocation without a checkpoint entry ends: the admission failed after Allocate.
func TestRejectedAllocationEnds(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, log *kubeletLogBuffer) {
		f.writeIDs("b")
		k.setPods(newPod("new"))
		c.OnAllocated(gpu, []device.AdvertisedID{"a", "b"})
		c.OnAllocated("nvidia.com/mig", []device.AdvertisedID{"b::1"})
		time.Sleep(ownerLookupTimeout - ms)
		wantDevice(t, c.current(), "a", "pending")
		_, changed := c.Snapshot()
		time.Sleep(maxRefreshDelay)
		wantDevice(t, c.current(), "a", "unallocated")
		wantDevice(t, c.current(), "b", "pending")
		if rows := c.current().ForDevice("b"); len(rows) != 1 {
			t.Errorf("allocations: got %v, want one", rows)
		}
		select {
		case <-changed:
		default:
			t.Error("readers were not notified")
		}
		if logged := log.String(); logged != "" {
			t.Errorf("log: got\n%s", logged)
		}
	})
}

// TestInitContainerAllocationIsKept checks that an init container's allocation without an owner lasts until the checkpoint drops the entry.
func TestInitContainerAllocationIsKept(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, log *kubeletLogBuffer) {
		f.writeIDs("a")
		k.setPods(newPod("new"))
		c.OnAllocated(gpu, []device.AdvertisedID{"a"}) // of an init container
		time.Sleep(5 * time.Hour)
		wantDevice(t, c.current(), "a", "pending")
		f.writeIDs()
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")

		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		f.writeIDs("a")
		time.Sleep(time.Hour)
		k.setPods(newPod("one", "a")) // the next container has the same device
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "allocated to one")
		k.setPods() // the kubelet releases the device without a write
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")
	})
}

func TestUnreadableCheckpointKeepsAllocationForAnHour(t *testing.T) {
	for name, spoil := range map[string]func(checkpointFile){
		"none":      func(checkpointFile) {},
		"malformed": func(f checkpointFile) { f.writeContent(checkpointJSON[:100]) },
		"a folder":  func(f checkpointFile) { os.Mkdir(f.path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, log *kubeletLogBuffer) {
				spoil(f)
				k.setPods(newPod("one", "b"))
				c.OnAllocated(gpu, []device.AdvertisedID{"a"})
				time.Sleep(40 * time.Minute)
				k.setPods(newPod("one", "b"), newPod("new"))
				c.OnAllocated(gpu, []device.AdvertisedID{"c"})
				time.Sleep(20 * time.Minute)
				wantDevice(t, c.current(), "a", "pending")
				time.Sleep(idleInterval)
				wantDevice(t, c.current(), "a", "unallocated")
				wantDevice(t, c.current(), "b", "allocated to one")
				wantDevice(t, c.current(), "c", "pending")
				time.Sleep(time.Hour)
				k.setPods(newPod("one", "b"), newPod("newer"))
				c.OnAllocated(gpu, []device.AdvertisedID{"d"})
				time.Sleep(time.Minute)
				if logged := log.String(); strings.Count(logged, "\n") != 1 || !strings.Contains(logged, f.path) {
					t.Errorf("log: got\n%s", logged)
				}
			})
		})
	}
}

func TestRepairedCheckpointIsRead(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, log *kubeletLogBuffer) {
		f.writeContent("broken")
		k.setPods(newPod("new"))
		c.OnAllocated(gpu, []device.AdvertisedID{"a"})
		time.Sleep(time.Minute)
		wantDevice(t, c.current(), "a", "pending")
		f.writeIDs("b")
		time.Sleep(idleInterval)
		wantDevice(t, c.current(), "a", "unallocated")
		if logged := log.String(); strings.Count(logged, "\n") != 1 {
			t.Errorf("log: got\n%s", logged)
		}
	})
}

func TestCheckpointDecidesInOutage(t *testing.T) {
	runCheckpointed(t, func(t *testing.T, k *scriptedKubelet, c *Client, f checkpointFile, log *kubeletLogBuffer) {
		k.setPods(newPod("one", "d"))
		time.Sleep(idleInterval)
		f.writeIDs("b", "d")
		c.OnAllocated(gpu, []device.AdvertisedID{"a", "b"})
		k.stop() // before the kubelet wrote the allocation of a
		time.Sleep(time.Minute)
		wantDevice(t, c.current(), "a", "unallocated")
		wantDevice(t, c.current(), "b", "pending")
		wantDevice(t, c.current(), "d", "allocated to one")
	})
}

// TestNewAllocationIgnoresOldCheckpoint merges a checkpoint that is older than the newest Allocate.
func TestNewAllocationIgnoresOldCheckpoint(t *testing.T) {
	m := newAllocationTracker()
	start := time.Unix(1<<30, 0)
	m.recordAllocate(gpu, []device.AdvertisedID{"a"}, start)
	read := start.Add(time.Minute)
	m.recordAllocate(gpu, []device.AdvertisedID{"a"}, read.Add(ms))
	m.mergeCheckpoint(kubeletCheckpoint{}, nil, read)
	wantDevice(t, device.Allocations{All: m.allocations, Complete: true}, "a", "pending")
}

// TestAllocationsOfEarlierProcess checks that allocations of init containers from before this process come from the checkpoint.
func TestAllocationsOfEarlierProcess(t *testing.T) {
	tests := map[string]struct {
		age  time.Duration // of the kubelet
		file func(f checkpointFile, k *scriptedKubelet)
		want string
	}{
		"written after the first response": {kubeletAgeInTests, func(f checkpointFile, _ *scriptedKubelet) {
			time.Sleep(700 * ms)
			f.writeIDs("init", "one")
		}, "pending"},
		"written before: the pod may have ended since": {kubeletAgeInTests, func(f checkpointFile, _ *scriptedKubelet) {
			f.writeIDs("init", "one")
			time.Sleep(2 * ms)
		}, "unallocated"},
		"written long after": {kubeletAgeInTests, func(f checkpointFile, _ *scriptedKubelet) {
			time.Sleep(11 * time.Second)
			f.writeIDs("init", "one")
		}, "unallocated"},
		"by a young kubelet": {0, func(f checkpointFile, _ *scriptedKubelet) {
			time.Sleep(700 * ms)
			f.writeIDs("init", "one")
		}, "unknown"},
		"by the next kubelet": {kubeletAgeInTests, func(f checkpointFile, k *scriptedKubelet) {
			time.Sleep(700 * ms)
			k.stop()
			f.writeIDs("init", "one")
			k.start(0)
		}, "pending"},
		"by a clock that was set back": {kubeletAgeInTests, func(f checkpointFile, _ *scriptedKubelet) {
			f.writeIDs("init", "one")
			future := time.Now().Add(time.Hour)
			os.Chtimes(f.path, future, future)
		}, "unallocated"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newCheckpointFile(t)
			runScripted(t, test.age, func(t *testing.T, k *scriptedKubelet, c *Client) {
				c.options.CheckpointPath = f.path
				k.setPods(newPod("one", "one"), newPod("prepared"))
				written := make(chan struct{})
				go func() { test.file(f, k); close(written) }()
				if strings.HasPrefix(name, "written before") {
					<-written
				}
				defer c.startRun(t)()
				<-written
				time.Sleep(20 * time.Second)
				wantDevice(t, c.current(), "init", test.want)
				wantDevice(t, c.current(), "one", "allocated to one")
				if test.want == "pending" {
					f.writeIDs("one")
					time.Sleep(idleInterval)
					wantDevice(t, c.current(), "init", "unallocated")
				}
			})
		})
	}
}

// TestCatchingUpEnds checks that the frequent calls of List end soon after the first response.
func TestCatchingUpEnds(t *testing.T) {
	f := newCheckpointFile(t)
	f.writeIDs()
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		c.options.CheckpointPath = f.path
		begin := time.Now()
		defer c.startRun(t)()
		time.Sleep(60 * time.Second)
		calls := k.listCallsSince(begin)
		late := slices.DeleteFunc(slices.Clone(calls), func(d time.Duration) bool { return d < 12*time.Second })
		if len(calls) > 15 || len(late) != 4 {
			t.Errorf("List calls: got %v", calls)
		}
	})
}
