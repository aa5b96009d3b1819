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

// As a kubelet of 1.37 wrote it, shortened.
const written = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"6b1c","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["a","b"]},"AllocResp":"CgA="},
	{"PodUID":"6b1c","ContainerName":"init","ResourceName":"nvidia.com/mig","DeviceIDs":{"0":["a"],"1":["a","c"]},"AllocResp":""}
],"RegisteredDevices":{"nvidia.com/gpu":["a","b","d"]}},"Checksum":3816129530}`

func TestParseNotes(t *testing.T) {
	tests := map[string]struct {
		content string
		want    []allocation // nil where it is refused
	}{
		"as written":                      {written, []allocation{{gpu, "a"}, {gpu, "b"}, {"nvidia.com/mig", "a"}, {"nvidia.com/mig", "c"}}},
		"nothing is allocated":            {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`, []allocation{}},
		"nothing is allocated, as a list": {`{"Data":{"PodDeviceEntries":[]}}`, []allocation{}},
		"no ids":                          {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":{"0":null}}]}}`, []allocation{}},
		"keys of a later version":         {`{"Version":3,"Data":{"More":[],"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":{"0":["a"]},"More":1}]}}`, []allocation{{"r", "a"}}},

		"empty":                             {"", nil},
		"cut short":                         {written[:len(written)/2], nil},
		"something behind":                  {written + "}", nil},
		"another form":                      {`{}`, nil},
		"another form of the data":          {`{"Data":{}}`, nil},
		"an array":                          {`[]`, nil},
		"null":                              {`null`, nil},
		"entries that are no list":          {`{"Data":{"PodDeviceEntries":{}}}`, nil},
		"an entry without ids":              {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r"}]}}`, nil},
		"an entry without resource":         {`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":["a"]}}]}}`, nil},
		"a null for an entry":               {`{"Data":{"PodDeviceEntries":[null]}}`, nil},
		"ids without nodes, as before 1.20": {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["a"]}]}}`, nil},
		"numbers for ids":                   {`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":{"0":[1]}}]}}`, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseNotes([]byte(test.content))
			if (err == nil) != (test.want != nil) {
				t.Fatalf("the error is %v", err)
			}
			for _, a := range test.want {
				if _, ok := got[a]; !ok || len(got) != len(test.want) {
					t.Errorf("allocated are %v, want %v", got, test.want)
				}
			}
		})
	}
}

func TestWhosTheNotesSayAnAllocationIs(t *testing.T) {
	got, err := parseNotes([]byte(`{"Data":{"PodDeviceEntries":[
		{"PodUID":"one","ResourceName":"r","DeviceIDs":{"0":["a","both"],"1":["a"]}},
		{"PodUID":"one","ResourceName":"r","DeviceIDs":{"0":["a"]}},
		{"PodUID":"two","ResourceName":"r","DeviceIDs":{"0":["b","both"]}},
		{"ResourceName":"r","DeviceIDs":{"0":["nobody's"]}}
	]}}`))
	want := map[allocation]string{{"r", "a"}: "one", {"r", "b"}: "two", {"r", "both"}: "", {"r", "nobody's"}: ""}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("allocated are %v, %v; want %v", got, err, want)
	}
}

func FuzzParseNotes(f *testing.F) {
	f.Add([]byte(written))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":null}}`))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["a"]}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseNotes(b)
		if (err == nil) != (got != nil) {
			t.Fatalf("allocated are %v, the error is %v", got, err)
		}
		var theirs struct { // checkpoint.Data, whole
			Data struct {
				PodDeviceEntries []struct {
					PodUID, ContainerName, ResourceName string
					DeviceIDs                           map[int64][]device.OfferedID
					AllocResp                           []byte
				}
				RegisteredDevices map[string][]string
			}
			Checksum uint64
		}
		if err != nil || json.Unmarshal(b, &theirs) != nil {
			return
		}
		want := map[allocation]bool{}
		has := map[allocation]bool{}
		for a := range got {
			has[a] = true
		}
		for _, e := range theirs.Data.PodDeviceEntries {
			for _, ids := range e.DeviceIDs {
				for _, id := range ids {
					want[allocation{e.ResourceName, id}] = true
				}
			}
		}
		if !maps.Equal(has, want) {
			t.Errorf("allocated are %v, the kubelet would read %v", got, want)
		}
	})
}

// file is a kubelet's checkpoint of the test's.
type file struct {
	t    *testing.T
	path string
}

func newFile(t *testing.T) file {
	return file{t, filepath.Join(t.TempDir(), CheckpointFile)}
}

// has writes allocations of gpu, now, each of another pod.
func (f file) has(ids ...string) {
	f.t.Helper()
	var entries []string
	for i, id := range ids {
		entries = append(entries, id, fmt.Sprint(i))
	}
	f.by(entries...)
}

// by writes allocations of gpu, now: an id, the UID of its pod, and so on.
func (f file) by(ids ...string) {
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
	f.is(string(b))
}

func (f file) is(content string) {
	f.t.Helper()
	hidden := f.path + "~"
	if err := os.WriteFile(hidden, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	now := time.Now() // the bubble's, which is not the file system's
	if err := os.Chtimes(hidden, now, now); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(hidden, f.path); err != nil {
		f.t.Fatal(err)
	}
}

// checkpointed runs a client that has a checkpoint beside its kubelet, and that
// began a minute ago.
func checkpointed(t *testing.T, test func(t *testing.T, k *scripted, c *Client, f file, log *lines)) {
	t.Helper()
	f := newFile(t)
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		var log lines
		c.log, c.Checkpoint = log.log(), f.path
		defer c.runs(t)()
		time.Sleep(time.Minute)
		test(t, k, c, f, &log)
	})
}

// A pod whose admission fails after Allocate never gets what was allocated.
func TestAnAllocationThatTheKubeletHasNotIsForgotten(t *testing.T) {
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, log *lines) {
		f.has("b")
		k.says(pod("new"))
		c.Allocated(gpu, []device.OfferedID{"a", "b"})
		c.Allocated("nvidia.com/mig", []device.OfferedID{"b::1"})
		time.Sleep(lookFor - ms)
		wantState(t, c.known(), "a", "unnamed")
		_, changed := c.Look()
		time.Sleep(lookSlowest)
		wantState(t, c.known(), "a", "idle")
		wantState(t, c.known(), "b", "unnamed")
		if rows := c.known().Rows("b"); len(rows) != 1 {
			t.Errorf("the rows are %v", rows)
		}
		select {
		case <-changed:
		default:
			t.Error("the change was not told")
		}
		if said := log.String(); said != "" {
			t.Errorf("the log is\n%s", said)
		}
	})
}

func TestAnAllocationThatTheKubeletHasStaysUnnamed(t *testing.T) {
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, log *lines) {
		f.has("a")
		k.says(pod("new"))
		c.Allocated(gpu, []device.OfferedID{"a"}) // for its init container
		time.Sleep(5 * time.Hour)
		wantState(t, c.known(), "a", "unnamed")
		f.has()
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "idle")

		c.Allocated(gpu, []device.OfferedID{"a"})
		f.has("a")
		time.Sleep(time.Hour)
		k.says(pod("one", "a")) // the container after it has the same device
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "held by one")
		k.says() // the kubelet frees it and does not write that down
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "idle")
	})
}

func TestAnAllocationOutlivesAnUnreadableCheckpointForAnHour(t *testing.T) {
	for name, spoil := range map[string]func(file){
		"none":      func(file) {},
		"malformed": func(f file) { f.is(written[:100]) },
		"a folder":  func(f file) { os.Mkdir(f.path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, log *lines) {
				spoil(f)
				k.says(pod("one", "b"))
				c.Allocated(gpu, []device.OfferedID{"a"})
				time.Sleep(40 * time.Minute)
				k.says(pod("one", "b"), pod("new"))
				c.Allocated(gpu, []device.OfferedID{"c"})
				time.Sleep(20 * time.Minute)
				wantState(t, c.known(), "a", "unnamed")
				time.Sleep(idleEvery)
				wantState(t, c.known(), "a", "idle")
				wantState(t, c.known(), "b", "held by one")
				wantState(t, c.known(), "c", "unnamed")
				time.Sleep(time.Hour)
				k.says(pod("one", "b"), pod("newer"))
				c.Allocated(gpu, []device.OfferedID{"d"})
				time.Sleep(time.Minute)
				if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, f.path) {
					t.Errorf("the log is\n%s", said)
				}
			})
		})
	}
}

func TestACheckpointThatIsMendedIsRead(t *testing.T) {
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, log *lines) {
		f.is("broken")
		k.says(pod("new"))
		c.Allocated(gpu, []device.OfferedID{"a"})
		time.Sleep(time.Minute)
		wantState(t, c.known(), "a", "unnamed")
		f.has("b")
		time.Sleep(idleEvery)
		wantState(t, c.known(), "a", "idle")
		if said := log.String(); strings.Count(said, "\n") != 1 {
			t.Errorf("the log is\n%s", said)
		}
	})
}

func TestTheCheckpointDecidesWhileTheKubeletIsAway(t *testing.T) {
	checkpointed(t, func(t *testing.T, k *scripted, c *Client, f file, log *lines) {
		k.says(pod("one", "d"))
		time.Sleep(idleEvery)
		f.has("b", "d")
		c.Allocated(gpu, []device.OfferedID{"a", "b"})
		k.stop() // it died before it has taken a's allocation down
		time.Sleep(time.Minute)
		wantState(t, c.known(), "a", "idle")
		wantState(t, c.known(), "b", "unnamed")
		wantState(t, c.known(), "d", "held by one")
	})
}

// An allocation from after the file was read is not judged by it.
func TestANewAllocationIsNotJudgedByOldNotes(t *testing.T) {
	m := newMemory()
	start := time.Unix(1<<30, 0)
	m.allocated(gpu, []device.OfferedID{"a"}, start)
	read := start.Add(time.Minute)
	m.allocated(gpu, []device.OfferedID{"a"}, read.Add(ms))
	m.review(notes{}, nil, read)
	wantState(t, device.Holders{Held: m.held, Settled: true}, "a", "unnamed")
}

// What was allocated before this process began is in the checkpoint and, where an
// init container has it, nowhere else.
func TestAllocationsOfAnEarlierProcess(t *testing.T) {
	tests := map[string]struct {
		age  time.Duration // the kubelet's
		file func(f file, k *scripted)
		want string
	}{
		"written after the first answer": {age, func(f file, _ *scripted) {
			time.Sleep(700 * ms)
			f.has("init", "one")
		}, "unnamed"},
		"written before it: the pod may have ended since": {age, func(f file, _ *scripted) {
			f.has("init", "one")
			time.Sleep(2 * ms)
		}, "idle"},
		"written too long after it": {age, func(f file, _ *scripted) {
			time.Sleep(11 * time.Second)
			f.has("init", "one")
		}, "idle"},
		"by a kubelet that has not read its pods": {0, func(f file, _ *scripted) {
			time.Sleep(700 * ms)
			f.has("init", "one")
		}, "unknown"},
		"by another kubelet than the one that answered": {age, func(f file, k *scripted) {
			time.Sleep(700 * ms)
			k.stop()
			f.has("init", "one")
			k.start(0)
		}, "unnamed"},
		"by a clock that was put back": {age, func(f file, _ *scripted) {
			f.has("init", "one")
			future := time.Now().Add(time.Hour)
			os.Chtimes(f.path, future, future)
		}, "idle"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFile(t)
			bubble(t, test.age, func(t *testing.T, k *scripted, c *Client) {
				c.Checkpoint = f.path
				k.says(pod("one", "one"), pod("prepared"))
				written := make(chan struct{})
				go func() { test.file(f, k); close(written) }()
				if strings.HasPrefix(name, "written before") {
					<-written
				}
				defer c.runs(t)()
				<-written
				time.Sleep(20 * time.Second)
				wantState(t, c.known(), "init", test.want)
				wantState(t, c.known(), "one", "held by one")
				if test.want == "unnamed" {
					f.has("one")
					time.Sleep(idleEvery)
					wantState(t, c.known(), "init", "idle")
				}
			})
		})
	}
}

// After its first answer a client looks around like after an allocation, and then
// comes to rest.
func TestCatchingUpHasAnEnd(t *testing.T) {
	f := newFile(t)
	f.has()
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		c.Checkpoint = f.path
		begin := time.Now()
		defer c.runs(t)()
		time.Sleep(60 * time.Second)
		asked := k.since(begin)
		late := slices.DeleteFunc(slices.Clone(asked), func(d time.Duration) bool { return d < 12*time.Second })
		if len(asked) > 15 || len(late) != 4 {
			t.Errorf("List was asked after %v", asked)
		}
	})
}
