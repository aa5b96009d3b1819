package node

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestNsenterThread checks that the thread is never the main thread. The main thread does not end with its goroutine, and would keep
// the node's mounts and cgroups until the process ends.
func TestNsenterThread(t *testing.T) {
	for range 200 {
		thread := &nsenterThread{init: &exec.Cmd{}, funcs: make(chan func()), closed: make(chan struct{})}
		go thread.run()
		err := thread.call(func() error {
			if syscall.Gettid() == os.Getpid() {
				return errors.New("nsenter thread is the main thread")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		thread.close()
	}
}

func TestHierarchyOptions(t *testing.T) {
	for kind, want := range map[string]string{
		"cgroup rw,memory":      "memory",
		"cgroup rw,cpu,cpuacct": "cpu,cpuacct",
		"none rw,xattr,release_agent=/lib/agent,name=systemd": "none,name=systemd",
	} {
		if got := hierarchyOptions(kind); got != want {
			t.Errorf("options of %s: got %s, want %s", kind, got, want)
		}
	}
}

func TestMergeMaps(t *testing.T) {
	type m = map[string]any
	base := m{"kept": 1, "logging": m{"verbosity": 4, "format": "text"}, "list": []string{"a"}}
	got := mergeMaps(base, m{"logging": m{"verbosity": 9}, "list": []string{"b"}, "featureGates": m{"PodsAPI": false}})
	want := m{"kept": 1, "logging": m{"verbosity": 9, "format": "text"}, "list": []string{"b"}, "featureGates": m{"PodsAPI": false}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if base["logging"].(m)["verbosity"] != 4 {
		t.Error("mergeMaps changed its first argument")
	}
}

// kubeletPod has the format of the kubelet's response; TestNode in test/e2e reads a real response.
const kubeletPod = `{"metadata":{"name":"one-node-a","namespace":"default","uid":"u1"},"status":{"phase":"Running","containerStatuses":[
{"name":"main","containerID":"containerd://abc","restartCount":1,"state":{"running":{"startedAt":"2026-01-02T03:04:05Z"}},
"allocatedResourcesStatus":[{"name":"nvidia.com/gpu","resources":[{"resourceID":"GPU-0","health":"Healthy"}]}]},
{"name":"done","containerID":"containerd://def","state":{"terminated":{"exitCode":3,"reason":"Error","finishedAt":"2026-01-02T03:04:06Z"}}},
{"name":"new","state":{"waiting":{"reason":"ContainerCreating"}}}]}}`

func TestPodStatus(t *testing.T) {
	var p v1.Pod
	if err := json.Unmarshal([]byte(kubeletPod), &p); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := StaticPodStatus{Namespace: "default", Name: "one-node-a", UID: "u1", Phase: "Running", Containers: []StaticContainerStatus{
		{Name: "main", ID: "abc", State: "running", Restarts: 1, Started: at, Devices: []DeviceHealth{{"nvidia.com/gpu", "GPU-0", "Healthy"}}},
		{Name: "done", ID: "def", State: "terminated", Reason: "Error", ExitCode: 3, Finished: at.Add(time.Second)},
		{Name: "new", State: "waiting", Reason: "ContainerCreating"},
	}}
	got := podStatus(p)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if pod := (StaticPod{Containers: make([]StaticContainer, 3)}); got.hasStarted(pod) {
		t.Error("pod with a waiting container has started")
	}
}

func TestUntil(t *testing.T) {
	tries := 0
	err := Until(t.Context(), "third call", func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("error and calls: got %v, %d, want nil, 3", err, tries)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	reason := errors.New("7 of 8")
	err = Until(ctx, "all are ready", func(context.Context) error { return reason })
	if !errors.Is(err, reason) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "all are ready") {
		t.Errorf("error at the deadline: %v", err)
	}

	err = Until(t.Context(), "process runs", func(context.Context) error { return StopRetrying(reason) })
	if !errors.Is(err, reason) {
		t.Errorf("error of StopRetrying: %v", err)
	}
}
